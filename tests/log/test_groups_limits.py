"""What groups of every kind refuse: more than their bounds, and clients that are not who they say; and what they forget."""

from __future__ import annotations

from typing import Any

import pytest

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.groups.classic.membership import PENDING_MAX
from logflume.log.broker.groups.classic.requests import JoinRequest
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol.errors import ErrorCode

from . import test_groups_streams as streams
from ._groups_harness import Broker
from .test_groups_consumer_protocol import join as join_consumer

OK = ErrorCode.NONE
WHERE = ("t", 0)


def stable_classic(broker: Broker, **options: Any) -> tuple[str, int]:
    """Form a classic group of one member; return its id and generation."""
    instance, group = options.get("instance"), options.get("group", "g")
    if instance is None:
        member_id, reply = broker.new_member(**options)
    else:
        reply = broker.join(**options)
    broker.time.advance(50)
    joined = reply.value
    member_id = joined.member_id
    assert broker.sync(member_id, joined.generation_id, {member_id: b"a"}, instance=instance, group=group).error_code == OK
    return member_id, joined.generation_id


def test_a_join_that_was_abandoned_leaves_nothing() -> None:
    broker = Broker()
    broker.join(session_ms=10_000)
    assert broker.groups.kind_of("g") == "Classic"
    broker.time.advance(10_000)
    assert broker.groups.kind_of("g") is None
    member_id = broker.join().member_id
    assert broker.leave((member_id, None)) == [OK]
    assert broker.groups.kind_of("g") is None
    broker.new_member(rebalance_ms=20_000)
    broker.time.advance(60_000)
    assert broker.groups.kind_of("g") is None, "it never asked for its assignment"
    assert broker.journal.appended == 0


def test_a_group_with_offsets_or_a_past_is_not_forgotten() -> None:
    broker = Broker()
    broker.commit({WHERE: 5})
    broker.join()
    broker.time.advance(10_000)
    assert broker.fetch() == {WHERE: (5, OK)}
    assert broker.groups.kind_of("g") == "Classic"
    member_id, _ = stable_classic(broker, group="h")
    broker.leave((member_id, None), group="h")
    assert broker.describe("h").group_state == "Empty"
    broker.crash()
    member_id = broker.join(group="h").member_id
    broker.leave((member_id, None), group="h")
    assert broker.describe("h").group_state == "Empty"


def test_no_more_groups_than_may_be() -> None:
    broker = Broker(config=GroupConfig(max_groups=2))
    broker.commit({WHERE: 1}, group="a")
    broker.commit({WHERE: 1}, group="b")
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.commit({WHERE: 1}, group="c") == {WHERE: full}
    assert broker.join(group="c").error_code == full
    refused = join_consumer(broker, "m", group="c")
    assert (refused.error_code, "logflume.max.groups" in refused.error_message) == (full, True)
    assert streams.join(broker, "m", group="c").error_code == full
    assert join_consumer(broker, "m", group="a").error_code == OK, "this one is there"
    assert streams.join(broker, "m", group="b").error_code == OK


def test_no_more_member_ids_than_may_be_waiting() -> None:
    broker = Broker()
    for _ in range(PENDING_MAX):
        broker.groups.join("g", _join())
    assert broker.groups.join("g", _join()).value.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    broker.time.advance(10_000)
    assert broker.groups.join("g", _join()).value.error == ErrorCode.MEMBER_ID_REQUIRED


def _join() -> JoinRequest:
    return JoinRequest("", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),))


CLASSIC: list[tuple[dict[str, Any], ErrorCode]] = [
    ({}, OK),
    ({"member_id": "x"}, ErrorCode.FENCED_INSTANCE_ID),
    ({"member_id": "x", "instance": None}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"member_id": "", "instance": None}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"member_id": "", "generation": -1, "instance": None}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
    ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
    ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
    ({"instance": "j"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"metadata": "x" * 4_097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ({"metadata": "ü" * 2_049}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ({"metadata": "x" * 4_096}, OK),
]


@pytest.mark.parametrize(("change", "error"), CLASSIC)
def test_who_may_commit_for_a_classic_group(change: dict[str, Any], error: ErrorCode) -> None:
    broker = Broker()
    member_id, generation = stable_classic(broker, instance="i")
    options = {"member_id": member_id, "generation": generation, "instance": "i", **change}
    assert broker.commit({WHERE: 5}, **options) == {WHERE: error}
    assert broker.fetch() == ({WHERE: (5, OK)} if error is OK else {})


MODERN: list[tuple[dict[str, Any], ErrorCode]] = [
    ({}, OK),
    ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"member_id": "", "generation": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"generation": 0}, ErrorCode.STALE_MEMBER_EPOCH),
    ({"generation": 2}, ErrorCode.STALE_MEMBER_EPOCH),
    ({"generation": -1}, ErrorCode.STALE_MEMBER_EPOCH),
    ({"version": 8}, ErrorCode.UNSUPPORTED_VERSION),
    ({"metadata": "x" * 4_097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
]


@pytest.mark.parametrize(("change", "error"), MODERN)
@pytest.mark.parametrize("join", [join_consumer, streams.join])
def test_who_may_commit_for_a_group_with_epochs(join: Any, change: dict[str, Any], error: ErrorCode) -> None:
    broker = Broker()
    join(broker, "a")
    assert broker.commit({WHERE: 5}, **{"member_id": "a", "generation": 1, **change}) == {WHERE: error}
    assert broker.fetch() == ({WHERE: (5, OK)} if error is OK else {})


@pytest.mark.parametrize("join", [join_consumer, streams.join])
def test_nobody_joins_a_group_that_is_being_deleted(join: Any) -> None:
    broker = Broker(journal=SimulatedJournal(partition_count=1, is_manual=True))
    broker.commit({WHERE: 1})
    broker.journal.flush()
    deleted = broker.send("DeleteGroups", groups_names=["g"])
    assert join(broker, "a").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.flush()
    assert deleted.value.results[0].error_code == OK
    joined = join(broker, "a")
    broker.journal.flush()
    assert joined.value.error_code == OK
    broker.crash()
    assert broker.fetch() == {}
    assert broker.groups.kind_of("g") in ("Consumer", "Streams")


@pytest.mark.parametrize("join", [join_consumer, streams.join])
def test_another_kind_of_member_cannot_act_in_a_group(join: Any) -> None:
    broker = Broker()
    join(broker, "a")
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.heartbeat("a", 1) == unknown
    assert broker.sync("a", 1).error_code == unknown
    assert broker.leave(("x", None)) == [unknown]
    member_id, generation = stable_classic(broker, group="h")
    for beat in (join_consumer, streams.join):
        assert beat(broker, member_id, group="h").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.heartbeat(member_id, generation, group="h") == OK


def test_a_member_of_one_group_is_nobody_in_another() -> None:
    broker = Broker()
    member_id, generation = stable_classic(broker)
    stable_classic(broker, group="h")
    assert broker.heartbeat(member_id, generation, group="h") == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.commit({WHERE: 1}, group="h", member_id=member_id, generation=generation) == {
        WHERE: ErrorCode.UNKNOWN_MEMBER_ID
    }
    assert broker.commit({WHERE: 1}, group="none", member_id=member_id, generation=generation) == {
        WHERE: ErrorCode.ILLEGAL_GENERATION
    }
    assert broker.leave((member_id, None), group="h") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_groups_that_nobody_came_back_to_make_room_and_others_do_not() -> None:
    broker = Broker(config=GroupConfig(max_groups=3))
    member_id, _ = stable_classic(broker, group="real")
    for number in range(50):
        assert broker.join(group=f"empty-{number}").error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert broker.groups.kind_of("real") == "Classic"
    assert broker.groups.kind_of("empty-0") is None
    assert stable_classic(broker, group="new")[0]
    assert stable_classic(broker, group="newer")[0]
    assert broker.join(group="one-too-many").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.leave((member_id, None), group="real") == [OK]


def test_an_id_of_kilobytes_is_refused() -> None:
    broker = Broker()
    assert broker.join(group="g" * 1024).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert broker.join(group="g" * 1025).error_code == ErrorCode.INVALID_GROUP_ID
    assert broker.commit({WHERE: 5}, group="g" * 1025) == {WHERE: ErrorCode.INVALID_GROUP_ID}
