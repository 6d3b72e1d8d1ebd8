"""ShareFetch and ShareAcknowledge on a simulated broker: sessions, locks, long polls, isolation, crashes, deletion."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.broker.replies import Reply
from logflume.log.broker.share.in_flight import AckType
from logflume.log.broker.testing.simulated import START_MS
from logflume.log.protocol import ErrorCode, messages

from ._share_harness import Member, ShareBroker, ack_errors, acquired_of
from ._wire import batch

ACCEPT, RELEASE, REJECT, RENEW = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW
T0 = ("t", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShareBroker]:
    made = ShareBroker(tmp_path)
    made.inner.create("t", 2)
    made.set_group("g", share_auto_offset_reset="earliest")
    yield made
    made.close()


def produce(broker: ShareBroker, count: int, *, topic: str = "t", batches: int = 1) -> None:
    for _ in range(batches):
        assert broker.inner.produce(topic, batch(*[b"v"] * count))[0].error_code == 0


def test_a_member_gets_records_accepts_them_and_nobody_sees_them_again(broker: ShareBroker) -> None:
    produce(broker, 10)
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t", connection=2)
    response = first.fetch(T0)
    assert acquired_of(response) == {0: [(0, 9, 1)]}
    assert response.acquisition_lock_timeout_ms == 30_000
    assert len(response.responses[0].partitions[0].records) > 0
    assert second.take(T0) == []
    assert ack_errors(first.acknowledge({T0: {(0, 9): [ACCEPT]}})) == [0]
    assert second.take() == []


def test_what_is_released_goes_to_another_with_a_higher_count(broker: ShareBroker) -> None:
    produce(broker, 4)
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t", connection=2)
    first.take(T0)
    second.take(T0)
    response = first.fetch(acks={T0: {(0, 3): [ACCEPT, RELEASE, REJECT, RELEASE]}})
    assert ack_errors(response) == [0]
    assert [entry[:2] for entry in acquired_of(response).get(0, [])] in ([], [(1, 1), (3, 3)])
    entries = acquired_of(response).get(0, []) or second.take()
    assert entries == [(1, 1, 2), (3, 3, 2)]


def test_a_long_poll_is_answered_by_new_records_and_by_released_ones(broker: ShareBroker) -> None:
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t", connection=2)
    waiting = first.fetch(T0, max_wait_ms=10_000)
    assert isinstance(waiting, Reply)
    assert not waiting.is_done
    produce(broker, 3)
    assert acquired_of(waiting.value) == {0: [(0, 2, 1)]}
    waiting = second.fetch(T0, max_wait_ms=10_000)
    first.acknowledge({T0: {(0, 2): [ACCEPT, RELEASE, ACCEPT]}})
    assert acquired_of(waiting.value) == {0: [(1, 1, 2)]}
    waiting = first.fetch(max_wait_ms=700)
    broker.time.advance(700)
    assert acquired_of(waiting.value) == {}


def test_a_lock_runs_out_unless_it_is_renewed(broker: ShareBroker) -> None:
    produce(broker, 4)
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t", connection=2)
    first.take(T0)
    broker.time.advance(20_000)
    renewed = first.acknowledge({T0: {(0, 1): [RENEW]}}, is_renew_ack=True)
    assert ack_errors(renewed) == [0]
    waiting = second.fetch(T0, max_wait_ms=60_000)
    broker.time.advance(10_000)
    assert acquired_of(waiting.value) == {0: [(2, 3, 2)]}
    assert ack_errors(first.acknowledge({T0: {(2, 3): [ACCEPT]}})) == [ErrorCode.INVALID_RECORD_STATE]
    assert ack_errors(first.acknowledge({T0: {(0, 1): [ACCEPT]}})) == [0]


def test_a_fetch_that_renews_takes_no_records(broker: ShareBroker) -> None:
    produce(broker, 2)
    produce(broker, 2)
    member = Member(broker, "m", "t")
    assert member.take(T0, max_records=2) == [(0, 1, 1)]
    nothing = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait_ms": 0, "is_renew_ack": True}
    response = member.fetch(acks={T0: {(0, 1): [RENEW]}}, **nothing)
    assert (response.error_code, ack_errors(response), acquired_of(response)) == (0, [0], {})
    refused = member.fetch(acks={T0: {(0, 1): [RENEW]}}, **nothing | {"max_records": 1})
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_sessions_have_epochs_and_end_with_the_last(broker: ShareBroker) -> None:
    produce(broker, 4)
    member, other = Member(broker, "m", "t"), Member(broker, "o", "t", connection=2)
    assert member.fetch(T0, epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.take(T0, epoch=0)
    assert member.fetch(epoch=5).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge({}, epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(T0, epoch=0, acks={T0: {(0, 0): [ACCEPT]}}).error_code == ErrorCode.INVALID_REQUEST
    final = member.fetch(epoch=-1, acks={T0: {(0, 1): [ACCEPT]}})
    assert (final.error_code, ack_errors(final)) == (0, [0])
    assert other.take(T0) == [(2, 3, 2)]
    assert member.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge({}, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_partitions_are_added_to_a_session_and_forgotten(broker: ShareBroker) -> None:
    broker.inner.produce("t", batch(b"a"), batch(b"b"))
    member = Member(broker, "m", "t")
    assert acquired_of(member.fetch(T0)) == {0: [(0, 0, 1)]}
    assert acquired_of(member.fetch(("t", 1))) == {1: [(0, 0, 1)]}
    broker.inner.produce("t", batch(b"c"), batch(b"d"))
    forgotten = messages.ShareFetchRequest.ForgottenTopic(topic_id=broker.topic_id("t"), partitions=[0])
    assert acquired_of(member.fetch(forgotten_topics_data=[forgotten])) == {1: [(1, 1, 1)]}


def test_a_connection_that_closes_gives_everything_back(broker: ShareBroker) -> None:
    produce(broker, 4)
    first, second = Member(broker, "m1", "t", connection=1), Member(broker, "m2", "t", connection=2)
    first.take(T0)
    lost = first.fetch(max_wait_ms=10_000)
    broker.inner.handlers.connection_closed(1)
    assert second.take(T0) == [(0, 3, 2)]
    second.fetch(epoch=-1, acks={T0: {(0, 3): [RELEASE]}})
    assert not lost.is_done
    assert len(broker.share.fetch.sessions) == 0


def test_a_member_whose_session_runs_out_gives_everything_back(broker: ShareBroker) -> None:
    produce(broker, 4)
    broker.set_group("g", share_auto_offset_reset="earliest", share_record_lock_duration_ms="60000")
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t", connection=2)
    first.take(T0)
    broker.time.advance(30_000)
    assert broker.heartbeat("m2", second.member_epoch).error_code == 0
    broker.time.advance(16_000)
    assert broker.heartbeat("m1", first.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert second.take(T0) == [(0, 3, 2)]


@pytest.mark.parametrize(
    ("acks", "version"),
    [
        ({(3, 1): [ACCEPT]}, 2),
        ({(-1, 1): [ACCEPT]}, 2),
        ({(0, 2): [ACCEPT, ACCEPT]}, 2),
        ({(0, 2): []}, 2),
        ({(0, 2): [5]}, 2),
        ({(0, 2): [-1]}, 2),
        ({(0, 2): [RENEW]}, 1),
        ({(0, 2): [RENEW]}, 2),
        ({(2, 3): [ACCEPT], (0, 1): [ACCEPT]}, 2),
        ({(0, 9): [ACCEPT]}, 2),
    ],
)
def test_acknowledgements_that_make_no_sense_change_nothing(broker: ShareBroker, acks: Any, version: int) -> None:
    produce(broker, 4)
    member = Member(broker, "m", "t")
    member.take(T0)
    assert ack_errors(member.acknowledge({T0: acks}, version=version)) == [ErrorCode.INVALID_REQUEST]
    assert ack_errors(member.acknowledge({T0: {(0, 3): [ACCEPT]}})) == [0]


def test_requests_without_names_or_for_unknown_partitions(broker: ShareBroker) -> None:
    produce(broker, 1)
    member = Member(broker, "m", "t")
    fields = {"share_session_epoch": 0, "max_wait_ms": 0, "min_bytes": 1, "max_records": 1, "batch_size": 1}
    assert broker.send("ShareFetch", group_id=None, member_id="m", **fields).error_code == ErrorCode.INVALID_REQUEST
    for name in ("", "x" * 37, None):
        assert broker.send("ShareFetch", group_id="g", member_id=name, **fields).error_code == ErrorCode.INVALID_REQUEST
    request = messages.ShareFetchRequest
    unknown = [request.FetchTopic(topic_id=b"?" * 16, partitions=[request.FetchPartition(partition_index=0)])]
    response = broker.send("ShareFetch", group_id="g", member_id="m", topics=unknown, **fields | {"max_wait_ms": 10_000})
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = member.fetch(("t", 7), epoch=0)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stranger = Member(broker, "s", "t", group="h")
    stranger.group = "nobody"
    response = stranger.fetch(T0, epoch=0)
    assert response.responses[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


I64 = st.one_of(st.integers(-2, 30), st.sampled_from([-(2**63), 2**63 - 1, 2**31]))
I32 = st.one_of(st.integers(-2, 30), st.sampled_from([-(2**31), 2**31 - 1]))
ANY_ACKS = st.dictionaries(st.tuples(I64, I64), st.lists(st.integers(-128, 127), max_size=8), max_size=4)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_numbers_in_a_session_are_answered(data: st.DataObject) -> None:
    """Nothing that a member of a group may say closes its connection, and it can go on with what it holds."""
    with tempfile.TemporaryDirectory() as path:
        broker = ShareBroker(Path(path))
        broker.inner.create("t", 2)
        broker.set_group("g", share_auto_offset_reset="earliest")
        produce(broker, 5, batches=4)
        member = Member(broker, "m", "t")
        assert member.take(T0, max_records=10) == [(0, 9, 1)]
        for _ in range(data.draw(st.integers(1, 5))):
            acks = {("t", data.draw(st.integers(0, 1))): data.draw(ANY_ACKS)}
            if data.draw(st.booleans()):
                answer = member.acknowledge(acks, is_renew_ack=data.draw(st.booleans()))
            else:
                names = ("max_records", "max_bytes", "min_bytes", "batch_size", "max_wait_ms")
                fields = {name: data.draw(I32, label=name) for name in names}
                answer = member.fetch(acks=acks, share_acquire_mode=data.draw(st.integers(-128, 127)), **fields)
            assert isinstance(answer, Reply) or answer.error_code == 0
        broker.heartbeat("m", topics=["t"])
        broker.time.advance(40_000)
        assert member.fetch(epoch=-1).error_code == 0
        broker.close()


def test_limits_of_records_bytes_and_locks(broker: ShareBroker) -> None:
    broker.set_group("g", share_auto_offset_reset="earliest", share_partition_max_record_locks="100")
    produce(broker, 10, batches=12)
    member = Member(broker, "m", "t")
    assert member.take(T0, max_records=15) == [(0, 19, 1)]
    assert member.take(max_records=5, share_acquire_mode=1) == [(20, 24, 1)]
    assert member.take(max_records=1, max_bytes=1) == [(25, 29, 1)]
    assert member.take(batch_size=20) == [(30, 49, 1), (50, 69, 1), (70, 89, 1), (90, 99, 1)]
    assert member.take() == []


def test_read_committed_waits_for_open_transactions_and_skips_aborted_ones(broker: ShareBroker) -> None:
    broker.set_group("g", share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    member = Member(broker, "m", "t")
    partition = broker.core.partition("t", 0)
    assert partition is not None

    def write(producer_id: int, sequence: int, *, is_commit: bool | None) -> None:
        data = batch(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        partition.log.append(data, leader_epoch=0, now_ms=START_MS)
        if is_commit is not None:
            partition.log.append_marker(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                is_commit=is_commit,
                leader_epoch=0,
                now_ms=START_MS,
            )
        partition.log.flush()
        partition.wake()

    write(1, 0, is_commit=False)
    write(2, 0, is_commit=True)
    write(3, 0, is_commit=None)
    assert member.take(T0) == [(3, 4, 1)]
    assert member.take() == []
    assert ack_errors(member.acknowledge({T0: {(3, 4): [ACCEPT]}})) == [0]
    share = broker.share.partitions.of_group("g")[0]
    assert share.state.start_offset == 6


def test_read_uncommitted_gives_everything_but_markers(broker: ShareBroker) -> None:
    partition = broker.core.partition("t", 0)
    assert partition is not None
    data = batch(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    partition.log.append(data, leader_epoch=0, now_ms=START_MS)
    partition.log.append_marker(
        producer_id=1, producer_epoch=0, coordinator_epoch=0, is_commit=False, leader_epoch=0, now_ms=START_MS
    )
    partition.log.flush()
    produce(broker, 1)
    assert Member(broker, "m", "t").take(T0) == [(0, 1, 1), (3, 3, 1)]


def test_where_a_group_begins(broker: ShareBroker) -> None:
    produce(broker, 5)
    broker.set_group("latest", share_auto_offset_reset="latest")
    latest, earliest = Member(broker, "m", "t", group="latest"), Member(broker, "m", "t")
    assert latest.take(T0) == []
    assert earliest.take(T0) == [(0, 4, 1)]
    produce(broker, 1)
    assert latest.take() == [(5, 5, 1)]
    broker.set_group("recent", share_auto_offset_reset="by_duration:PT1H")
    assert Member(broker, "m", "t", group="recent").take(T0) == [(0, 5, 1)]
    broker.time.advance(3_700_000)
    broker.set_group("older", share_auto_offset_reset="by_duration:PT1H")
    assert Member(broker, "m", "t", group="older").take(T0) == []


def test_a_power_cut_keeps_what_was_acknowledged_and_where_the_group_began(broker: ShareBroker) -> None:
    broker.set_group("late", share_auto_offset_reset="latest")
    produce(broker, 6)
    member, late = Member(broker, "m", "t"), Member(broker, "l", "t", group="late")
    assert late.take(T0) == []
    member.take(T0)
    member.acknowledge({T0: {(1, 2): [ACCEPT], (3, 3): [RELEASE]}})
    produce(broker, 2)
    broker.power_cut()
    again = Member(broker, "m", "t")
    assert again.take(T0) == [(0, 0, 1), (3, 3, 2), (4, 7, 1)]
    assert Member(broker, "l", "t", group="late").take(T0) == [(6, 7, 1)]


def test_a_disk_that_fails_leaves_the_records_with_their_member(broker: ShareBroker) -> None:
    produce(broker, 2)
    member = Member(broker, "m", "t")
    member.take(T0)
    share = broker.share.partitions.of_group("g")[0]
    broker.inner.disk.fail("write")
    assert ack_errors(member.acknowledge({T0: {(0, 1): [ACCEPT]}})) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert [(run.member_id, run.is_pending) for run in share.state.runs()] == [("m", False)]
    assert share.state.next_deadline_ms == 30_000


def test_records_that_retention_removed_are_passed_over(broker: ShareBroker) -> None:
    produce(broker, 10)
    member = Member(broker, "m", "t")
    assert member.take(T0, max_records=2, share_acquire_mode=1) == [(0, 1, 1)]
    partition = broker.core.partition("t", 0)
    assert partition is not None
    partition.log.delete_records_before(5)
    assert member.take() == [(5, 9, 1)]
    assert ack_errors(member.acknowledge({T0: {(0, 1): [ACCEPT]}})) == [0]


def test_a_deleted_topic_is_forgotten_and_one_of_its_name_begins_anew(broker: ShareBroker) -> None:
    produce(broker, 3)
    member = Member(broker, "m", "t")
    member.take(T0)
    old = member.broker.topic_id("t")
    waiting = member.fetch(max_wait_ms=60_000)
    broker.inner.call(messages.DeleteTopicsRequest(topic_names=["t"]), 1)
    assert broker.share.partitions.of_group("g") == []
    broker.time.advance(60_000)
    assert waiting.is_done
    broker.inner.create("t", 1)
    produce(broker, 2)
    assert broker.topic_id("t") != old
    again = Member(broker, "m2", "t", connection=2)
    assert again.take(T0) == [(0, 1, 1)]
    assert set(broker.share.groups.get("g").initialized) == {broker.topic_id("t")}  # type: ignore[union-attr]


def test_there_is_an_end_to_the_partitions_of_a_session(broker: ShareBroker) -> None:
    produce(broker, 1)
    member = Member(broker, "m", "t")
    assert member.take(T0) == [(0, 0, 1)]
    request = messages.ShareFetchRequest
    many = [request.FetchPartition(partition_index=index) for index in range(1, 20_001)]
    fields = {"group_id": "g", "member_id": "m", "max_records": 1, "max_bytes": 1, "batch_size": 1}
    topics = [request.FetchTopic(topic_id=broker.topic_id("t"), partitions=many)]
    refused = broker.send("ShareFetch", share_session_epoch=member.session_epoch, topics=topics, **fields)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert member.take() == []


def test_there_is_an_end_to_share_sessions(broker: ShareBroker) -> None:
    broker.share.fetch.sessions._max_sessions = 1
    first, second = Member(broker, "m1", "t"), Member(broker, "m2", "t")
    first.take(T0)
    waiting = second.fetch(T0, max_wait_ms=500)
    broker.time.advance(500)
    assert waiting.value.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    first.fetch(epoch=-1)
    assert second.fetch(T0, epoch=0).error_code == 0
