"""Committed offsets: who may commit, what is refused, transactions, expiry, deletion, and what a crash leaves."""

from typing import Any

import pytest

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.ports import Admission
from logflume.log.broker.replies import Reply
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker

DAY_MS = 24 * 3_600_000
OK = ErrorCode.NONE
NONE_COMMITTED = (-1, OK)


@pytest.fixture
def broker() -> Broker:
    return Broker(config=GroupConfig(initial_rebalance_delay_ms=0))


def stable_member(
    broker: Broker, *, protocol_type: str = "consumer", metadata: bytes = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"
) -> str:
    """Make a stable group of one member that reads topic t; generation 1."""
    member_id, joined = broker.new_member(protocols=(("range", metadata),), protocol_type=protocol_type)
    assert joined.generation_id == 1
    broker.sync(member_id, 1, {member_id: b"a"})
    return member_id


def test_a_member_commits_and_everybody_reads(broker: Broker) -> None:
    member_id = stable_member(broker)
    committed = broker.commit({("t", 0): 5, ("t", 1): 6}, member_id=member_id, generation=1)
    assert committed == {("t", 0): OK, ("t", 1): OK}
    assert broker.fetch(("t", 0), ("t", 1), ("t", 2)) == {("t", 0): (5, OK), ("t", 1): (6, OK), ("t", 2): NONE_COMMITTED}
    assert broker.fetch() == {("t", 0): (5, OK), ("t", 1): (6, OK)}
    assert broker.fetch(("t", 0), group="other") == {("t", 0): NONE_COMMITTED}


def test_committing_keeps_a_member_alive(broker: Broker) -> None:
    member_id = stable_member(broker)
    for offset in range(4):
        broker.time.advance(9_000)
        broker.commit({("t", 0): offset}, member_id=member_id, generation=1)
    assert broker.heartbeat(member_id, 1) == OK


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": "none"}, ErrorCode.ILLEGAL_GENERATION),
        ({"metadata": "x" * 4_097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_a_commit_is_refused(broker: Broker, change: dict[str, Any], error: ErrorCode) -> None:
    member_id = stable_member(broker)
    request = {"member_id": member_id, "generation": 1, **change}
    assert broker.commit({("t", 0): 5}, **request) == {("t", 0): error}
    assert broker.fetch() == {}


def test_a_good_partition_is_committed_beside_a_bad_one(broker: Broker) -> None:
    errors = broker.commit({("t", 0): 5, ("nowhere", 0): 1, ("t", 99): 1})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == {("t", 0): OK, ("nowhere", 0): unknown, ("t", 99): unknown}
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_a_commit_between_two_generations(broker: Broker) -> None:
    member_id = stable_member(broker)
    broker.new_member()
    errors = broker.commit({("t", 0): 5}, member_id=member_id, generation=1)
    assert errors == {("t", 0): OK}, "while the group prepares, the previous generation may still commit"
    broker.join(member_id)
    errors = broker.commit({("t", 0): 6}, member_id=member_id, generation=2)
    assert errors == {("t", 0): ErrorCode.REBALANCE_IN_PROGRESS}


def test_without_members_anybody_may_commit(broker: Broker) -> None:
    assert broker.commit({("t", 0): 5}) == {("t", 0): OK}
    assert broker.describe().group_state == "Empty"
    assert broker.describe().protocol_type == ""


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_commits(broker: Broker, version: int) -> None:
    assert broker.commit({("t", 0): 5}, version=version, metadata="hello") == {("t", 0): OK}
    assert broker.groups.committed_offsets("g")["t", 0].metadata == "hello"


def test_a_topic_id_that_does_not_exist(broker: Broker) -> None:
    assert broker.commit({("nowhere", 0): 5}, version=10) == {("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_ID}


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("is_all", [False, True])
def test_every_version_fetches(broker: Broker, version: int, is_all: bool) -> None:
    if is_all and version < 2:
        return
    broker.commit({("t", 0): 5}, metadata="m")
    request = messages.OffsetFetchRequest
    if version < 8:
        topics = None if is_all else [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        response = broker.send("OffsetFetch", version=version, group_id="g", topics=topics)
        found = response.topics
        assert response.error_code == OK
    else:
        topic = request.OffsetFetchRequestTopics(name="t", topic_id=b"t".ljust(16, b"\0"), partition_indexes=[0])
        group = request.OffsetFetchRequestGroup(group_id="g", topics=None if is_all else [topic])
        found = broker.send("OffsetFetch", version=version, groups=[group]).groups[0].topics
    assert [(p.committed_offset, p.metadata, p.error_code) for t in found for p in t.partitions] == [(5, "m", OK)]


def test_fetching_an_unknown_topic_id(broker: Broker) -> None:
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(topic_id=b"nowhere".ljust(16, b"\0"), partition_indexes=[0])
    group = request.OffsetFetchRequestGroup(group_id="g", topics=[topic])
    response = broker.send("OffsetFetch", version=10, groups=[group])
    assert response.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_offset_is_read_only_once_it_is_on_disk(broker: Broker) -> None:
    broker.journal.is_manual = True
    waiting = broker.commit({("t", 0): 5})
    assert isinstance(waiting, Reply)
    assert broker.fetch() == {}
    broker.journal.flush()
    assert waiting.is_done
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_a_journal_that_fails(broker: Broker) -> None:
    broker.commit({("t", 0): 5})
    broker.journal.is_failing = True
    assert broker.commit({("t", 0): 6}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert broker.txn_commit({("t", 0): 6}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert broker.fetch(("t", 0), require_stable=True) == {("t", 0): (5, OK)}


def test_offsets_survive_a_crash(broker: Broker) -> None:
    broker.commit({("t", 0): 5, ("u", 1): 7})
    broker.commit({("t", 0): 6})
    broker.crash()
    assert broker.fetch() == {("t", 0): (6, OK), ("u", 1): (7, OK)}


# -- transactions


def test_offsets_of_a_transaction_appear_when_it_commits(broker: Broker) -> None:
    broker.commit({("t", 0): 1})
    assert broker.txn_commit({("t", 0): 5, ("t", 1): 6}) == {("t", 0): OK, ("t", 1): OK}
    assert broker.fetch(("t", 0), ("t", 1)) == {("t", 0): (1, OK), ("t", 1): NONE_COMMITTED}
    unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert broker.fetch(("t", 0), ("t", 2), require_stable=True) == {("t", 0): unstable, ("t", 2): NONE_COMMITTED}
    broker.end_transaction(is_commit=True)
    assert broker.fetch(require_stable=True) == {("t", 0): (5, OK), ("t", 1): (6, OK)}


def test_offsets_of_an_aborted_transaction_never_appear(broker: Broker) -> None:
    broker.commit({("t", 0): 1})
    broker.txn_commit({("t", 0): 5})
    broker.end_transaction(is_commit=False)
    assert broker.fetch(require_stable=True) == {("t", 0): (1, OK)}


@pytest.mark.parametrize("is_commit", [True, False])
def test_pending_offsets_wait_for_their_marker_over_a_crash(broker: Broker, is_commit: bool) -> None:
    broker.txn_commit({("t", 0): 5})
    broker.crash()
    assert broker.fetch(("t", 0), require_stable=True) == {("t", 0): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)}
    broker.end_transaction(is_commit=is_commit)
    expected = {("t", 0): (5, OK)} if is_commit else {("t", 0): NONE_COMMITTED}
    assert broker.fetch(("t", 0), require_stable=True) == expected
    broker.crash()
    assert broker.fetch(("t", 0), require_stable=True) == expected


def test_of_two_commits_the_later_in_the_journal_wins(broker: Broker) -> None:
    broker.txn_commit({("t", 0): 5}, producer_id=7)
    broker.commit({("t", 0): 9})
    broker.end_transaction(is_commit=True, producer_id=7)
    assert broker.fetch() == {("t", 0): (9, OK)}
    broker.crash()
    assert broker.fetch() == {("t", 0): (9, OK)}


def test_offsets_on_their_way_to_disk_are_unstable_already(broker: Broker) -> None:
    broker.journal.is_manual = True
    broker.txn_commit({("t", 0): 5})
    assert broker.fetch(("t", 0), require_stable=True) == {("t", 0): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)}


@pytest.mark.parametrize(("version", "can_add"), [(v, v >= 5) for v in range(6)])
def test_the_transaction_is_asked_first(broker: Broker, version: int, can_add: bool) -> None:
    broker.admission.answer = Admission(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert broker.txn_commit({("t", 0): 5}, version=version) == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    partition = broker.groups.journal_partition("g")
    assert broker.admission.asked == [("tx", 7, 0, "__consumer_offsets", partition, can_add)]
    assert broker.groups.unstable_partitions("g") == set()


@pytest.mark.parametrize("is_first_added", [True, False])
def test_a_commit_waits_until_its_partition_is_in_the_transaction(broker: Broker, is_first_added: bool) -> None:
    added = Reply()
    broker.admission.answer = Admission(added=added, is_first_added=is_first_added)
    waiting = broker.txn_commit({("t", 0): 5})
    assert not waiting.is_done
    assert broker.groups.unstable_partitions("g") == (set() if is_first_added else {("t", 0)})
    added.set(OK)
    assert waiting.is_done
    assert broker.groups.unstable_partitions("g") == {("t", 0)}


def test_a_commit_whose_partition_could_not_be_added_is_refused(broker: Broker) -> None:
    broker.admission.answer = Admission(added=Reply.of(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert broker.txn_commit({("t", 0): 5}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_a_stale_member_cannot_commit_in_a_transaction(broker: Broker) -> None:
    member_id = stable_member(broker)
    refused = broker.txn_commit({("t", 0): 5}, member_id=member_id, generation_id=0)
    assert refused == {("t", 0): ErrorCode.ILLEGAL_GENERATION}
    assert broker.txn_commit({("t", 0): 5}, member_id="zombie", generation_id=1) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.txn_commit({("t", 0): 5}, member_id=member_id, generation_id=1) == {("t", 0): OK}
    assert broker.txn_commit({("t", 1): 5}, version=0) == {("t", 1): OK}, "older clients do not say who they are"


# -- deletion and expiry


def offset_delete(broker: Broker, *partitions: tuple[str, int], group: str = "g") -> Any:
    request = messages.OffsetDeleteRequest
    topic, partition = request.OffsetDeleteRequestTopic, request.OffsetDeleteRequestPartition
    topics = [topic(name=name, partitions=[partition(partition_index=index)]) for name, index in partitions]
    response = broker.send("OffsetDelete", group_id=group, topics=topics)
    errors = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
    return response.error_code, errors


def test_offsets_are_deleted(broker: Broker) -> None:
    broker.commit({("t", 0): 5, ("u", 0): 6})
    assert offset_delete(broker, ("t", 0), ("nowhere", 0)) == (
        OK,
        {("t", 0): OK, ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    )
    assert broker.fetch() == {("u", 0): (6, OK)}
    broker.crash()
    assert broker.fetch() == {("u", 0): (6, OK)}


def test_offsets_of_topics_in_use_are_not_deleted(broker: Broker) -> None:
    member_id = stable_member(broker)
    broker.commit({("t", 0): 5, ("u", 0): 6}, member_id=member_id, generation=1)
    assert offset_delete(broker, ("t", 0), ("u", 0)) == (
        OK,
        {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): OK},
    )
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_offset_delete_refuses(broker: Broker) -> None:
    assert offset_delete(broker, ("t", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    stable_member(broker, protocol_type="connect", metadata=b"?")
    assert offset_delete(broker, ("t", 0)) == (ErrorCode.NON_EMPTY_GROUP, {})


def test_offsets_of_an_empty_group_expire_a_week_after_it_became_empty(broker: Broker) -> None:
    member_id = stable_member(broker)
    broker.commit({("t", 0): 5}, member_id=member_id, generation=1)
    for _ in range(8 * 24 * 3_600 // 9):
        broker.time.advance(9_000)
        broker.heartbeat(member_id, 1)
    assert broker.fetch() == {("t", 0): (5, OK)}, "the topic is still being read"
    broker.leave((member_id, None))
    broker.time.advance(6 * DAY_MS)
    assert broker.fetch() == {("t", 0): (5, OK)}
    broker.time.advance(DAY_MS + 600_000)
    assert broker.fetch() == {}
    assert broker.groups.group("g") is None
    broker.crash()
    assert broker.groups.group("g") is None


def test_offsets_of_topics_nobody_reads_expire(broker: Broker) -> None:
    broker.commit({("u", 0): 6, ("t", 0): 5})
    member_id = stable_member(broker)
    for _ in range(8 * 24 * 3_600 // 9):
        broker.time.advance(9_000)
        broker.heartbeat(member_id, 1)
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_offsets_without_members_expire_after_their_commit(broker: Broker) -> None:
    broker.commit({("t", 0): 5})
    broker.time.advance(4 * DAY_MS)
    broker.commit({("t", 1): 6})
    broker.time.advance(4 * DAY_MS)
    assert broker.fetch() == {("t", 1): (6, OK)}


def test_a_pending_offset_does_not_expire(broker: Broker) -> None:
    broker.commit({("t", 0): 5})
    broker.txn_commit({("t", 0): 6})
    broker.time.advance(9 * DAY_MS)
    assert broker.fetch() == {("t", 0): (5, OK)}


def test_offsets_go_with_their_topic(broker: Broker) -> None:
    broker.commit({("t", 0): 5, ("u", 0): 6})
    broker.groups.removal.drop_topics(["t"])
    assert broker.fetch() == {("u", 0): (6, OK)}
    broker.crash()
    assert broker.fetch() == {("u", 0): (6, OK)}
