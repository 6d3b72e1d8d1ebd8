"""What a crash leaves of a transaction in each state, the records on disk, and the tools that look at transactions."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.transactions import journal_records as records
from logflume.log.broker.transactions.metadata import Txn, TxnState
from logflume.log.errors import DecodeError
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from ._transactions_harness import Marker, TxnBroker, ended

OK = ErrorCode.NONE


@pytest.fixture
def broker() -> TxnBroker:
    return TxnBroker()


def test_an_empty_id_keeps_its_epoch(broker: TxnBroker) -> None:
    broker.started()
    producer = broker.started()
    broker.crash()
    assert broker.init() == (OK, producer[0], producer[1] + 1)


def test_an_open_transaction_goes_on(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    broker.crash()
    assert broker.produce(producer, ("t", 0), can_add=False) == OK
    broker.produce(producer, ("t", 1))
    assert broker.end(producer)[0] == OK
    assert {m.where for m in broker.partitions.markers} == {("t", 0), ("t", 1)}


def test_an_open_transaction_still_times_out(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.produce(producer, ("t", 0))
    broker.time.advance(4_000)
    broker.crash()
    broker.time.advance(1_000)
    assert broker.state() == "CompleteAbort"


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("written", [0, 1])
def test_a_decided_end_is_finished(broker: TxnBroker, is_commit: bool, version: int, written: int) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0), ("t", 1))
    broker.partitions.is_manual = True
    broker.end(producer, is_commit=is_commit, version=version)
    broker.partitions.flush(count=written)
    broker.partitions.is_manual = False
    broker.crash()
    epoch = 1 if version == 5 else 0
    assert set(broker.partitions.markers) == {Marker(("t", p), producer[0], epoch, is_commit) for p in (0, 1)}
    assert broker.state() == ("CompleteCommit" if is_commit else "CompleteAbort")
    repeated = broker.end(producer, is_commit=is_commit, version=version)
    assert repeated == ((OK, producer[0], 1) if version == 5 else (OK, -1, -1))


@pytest.mark.parametrize("kept", [0, 1])
def test_an_end_that_was_not_decided_is_not_there(broker: TxnBroker, kept: int) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    broker.journal.is_manual = broker.partitions.is_manual = True
    broker.end(producer)
    broker.journal.is_manual = broker.partitions.is_manual = False
    broker.crash(kept=kept)
    broker.journal.flush()
    assert broker.state() == ("CompleteCommit" if kept else "Ongoing")
    assert broker.end(producer) == (OK, producer[0], 1)


@pytest.mark.parametrize("written", [1, 2])
def test_a_commit_of_which_only_markers_are_there_is_finished(broker: TxnBroker, written: int) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0), ("t", 1), ("t", 2))
    broker.journal.is_manual = broker.partitions.is_manual = True
    broker.end(producer)
    broker.partitions.flush(count=written)
    broker.journal.is_manual = broker.partitions.is_manual = False
    broker.crash()
    broker.journal.flush()
    assert set(broker.partitions.markers) == {Marker(("t", p), producer[0], 1, True) for p in range(3)}
    assert broker.state() == "CompleteCommit"
    assert broker.end(producer) == (OK, producer[0], 1)


@pytest.mark.parametrize("is_timeout", [True, False])
def test_nothing_is_aborted_while_a_partition_that_cannot_be_read_may_hold_its_commit(
    broker: TxnBroker, is_timeout: bool
) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.produce(producer, ("t", 0))
    broker.produce(producer, ("t", 1))
    broker.journal.is_manual = broker.partitions.is_manual = True
    broker.end(producer)
    broker.partitions.flush(count=1)
    broker.journal.is_manual = broker.partitions.is_manual = False
    broker.partitions.errors[("t", 0)] = ErrorCode.KAFKA_STORAGE_ERROR
    broker.crash()
    broker.journal.flush()
    if is_timeout:
        broker.time.advance(60_000)
    else:
        assert broker.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        assert broker.end(producer, is_commit=False)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.state() == "Ongoing"
    broker.partitions.errors.clear()
    broker.time.advance(60_000)
    broker.init()
    assert set(broker.partitions.markers) == {Marker(("t", p), producer[0], 1, True) for p in range(2)}


@pytest.mark.parametrize("is_first", [True, False])
def test_records_whose_addition_was_lost_belong_to_the_transaction(broker: TxnBroker, is_first: bool) -> None:
    producer = broker.started(timeout_ms=5_000)
    if not is_first:
        broker.produce(producer, ("t", 0))
    broker.journal.is_manual = True
    assert not broker.produce(producer, ("t", 1)).is_done
    broker.journal.is_manual = False
    broker.crash()
    broker.journal.flush()
    assert broker.state() == "Ongoing"
    broker.time.advance(5_000)
    assert Marker(("t", 1), producer[0], 1, False) in broker.partitions.markers
    assert not broker.partitions.open_transactions()


def test_records_whose_addition_could_not_be_written_belong_to_the_transaction(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.journal.is_failing = True
    assert broker.produce(producer, ("t", 1)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.is_failing = False
    broker.time.advance(5_000)
    assert not broker.partitions.open_transactions()


def test_records_of_a_partition_that_comes_back_belong_to_the_transaction(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.journal.is_manual = True
    broker.produce(producer, ("t", 1))
    broker.journal.is_manual = False
    broker.partitions.errors[("t", 1)] = ErrorCode.KAFKA_STORAGE_ERROR
    broker.crash()
    assert broker.state() == "Empty"
    broker.partitions.errors.clear()
    broker.txns.on_partition_back(broker.partitions.opened(("t", 1)))
    assert broker.state() == "Ongoing"
    broker.time.advance(5_000)
    assert not broker.partitions.open_transactions()


def test_records_behind_a_commit_whose_completion_was_lost_are_not_committed(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.produce(producer, ("t", 0))
    broker.produce(producer, ("t", 1))
    broker.journal.is_manual = True
    broker.end(producer)
    broker.journal.flush(count=1)
    broker.produce((producer[0], 1), ("t", 0))
    broker.crash()
    broker.journal.flush()
    assert (broker.state(), broker.txns.transaction("tx").partitions) == ("Ongoing", {("t", 0)})  # type: ignore[union-attr]
    assert Marker(("t", 0), producer[0], 1, True) == broker.partitions.markers[0]
    assert broker.partitions.markers.count(Marker(("t", 0), producer[0], 1, True)) == 1, "its records would be committed"
    ended_so = broker.end((producer[0], 1), is_commit=False)
    broker.journal.flush()
    assert ended(ended_so.value) == (OK, producer[0], 2)
    assert Marker(("t", 0), producer[0], 2, False) in broker.partitions.markers


def test_a_completion_that_was_lost_is_done_again(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    broker.journal.is_manual = True
    waiting = broker.end(producer)
    broker.journal.flush(count=1)
    assert ended(waiting.value) == (OK, producer[0], 1)
    broker.crash()
    broker.journal.flush()
    assert broker.state() == "CompleteCommit"
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], 1, True)] * 2


def test_fencing_survives(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.produce(producer, ("t", 0))
    broker.time.advance(5_000)
    broker.crash()
    assert broker.end(producer, is_commit=True) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert broker.end(producer, is_commit=False) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_an_unreadable_record_is_named(broker: TxnBroker) -> None:
    from logflume.log.broker.ports import JournalRecord

    broker.journal.append(1, [JournalRecord(records.encode_key("x"), b"\0\x09")])
    with pytest.raises(DecodeError, match=r"__transaction_state-1, offset 0: .*version 9"):
        broker.crash()


# -- records


def test_records_have_kafkas_bytes() -> None:
    assert records.encode_key("tx") == b"\0\0\0\2tx"
    txn = Txn(
        "tx", 7, 3, 60_000, 111, state=TxnState.PREPARE_COMMIT, partitions=frozenset({("t", 2), ("t", 1)}), start_ms=99,
        next_producer_id=8, client_version=2,
    )  # fmt: skip
    expected = struct.pack(">hqhib", 1, 7, 3, 60_000, 2)
    expected += b"\2" + b"\2t" + b"\3" + struct.pack(">ii", 1, 2) + b"\0"
    expected += struct.pack(">qq", 111, 99)
    expected += b"\2" + b"\1\x08" + struct.pack(">q", 8) + b"\2\2\0\2"
    assert records.encode_value(txn) == expected
    assert records.decode_value("tx", expected) == txn


def test_an_empty_id_has_no_partitions_in_kafkas_way() -> None:
    data = records.encode_value(Txn("tx", 7, 0, 1, 5, client_version=0))
    assert data == struct.pack(">hqhib", 1, 7, 0, 1, 0) + b"\0" + struct.pack(">qq", 5, -1) + b"\0"


def test_the_older_version_is_read() -> None:
    data = struct.pack(">hqhib", 0, 7, 3, 60_000, 1) + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">ii", 1, 4)
    txn = records.decode_value("tx", data + struct.pack(">qq", 5, 4))
    assert (txn.state, txn.partitions, txn.client_version) == (TxnState.ONGOING, {("t", 4)}, 0)


ints64, ints16 = st.integers(-1, 2**63 - 1), st.integers(0, 2**15 - 1)


@given(
    st.builds(
        Txn,
        transactional_id=st.just("tx"),
        producer_id=ints64,
        producer_epoch=ints16,
        timeout_ms=st.integers(0, 2**31 - 1),
        update_ms=ints64,
        state=st.sampled_from(TxnState),
        partitions=st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=6),
        start_ms=ints64,
        previous_producer_id=ints64,
        next_producer_id=ints64,
        client_version=st.integers(0, 2),
    )
)
def test_records_come_back_as_they_were(txn: Txn) -> None:
    assert records.decode_value("tx", records.encode_value(txn)) == txn


@given(st.binary(max_size=150))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for decode in (records.decode_key, lambda d: records.decode_value("tx", d)):
        try:
            assert isinstance(decode(data), str | Txn | None)
        except DecodeError:
            continue


# -- tools


def listed(broker: TxnBroker, **filters: Any) -> dict[str, str]:
    response = broker.send("ListTransactions", **filters)
    assert response.error_code == OK
    return {t.transactional_id: t.transaction_state for t in response.transaction_states}


def test_transactions_are_listed_and_described(broker: TxnBroker) -> None:
    broker.started("idle")
    producer = broker.started("busy", timeout_ms=30_000)
    broker.add(producer, ("t", 1), ("t", 0), ("u", 0), name="busy")
    broker.time.advance(100)
    assert listed(broker) == {"idle": "Empty", "busy": "Ongoing"}
    assert listed(broker, state_filters=["Ongoing"]) == {"busy": "Ongoing"}
    assert listed(broker, producer_id_filters=[1000]) == {"idle": "Empty"}
    assert listed(broker, duration_filter=50) == {"busy": "Ongoing"}
    assert listed(broker, duration_filter=200) == {}
    assert listed(broker, transactional_id_pattern="b.*") == {"busy": "Ongoing"}
    unknown = broker.send("ListTransactions", state_filters=["Sleeping"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Sleeping"], [])
    bad = broker.send("ListTransactions", transactional_id_pattern="(")
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    described = broker.send("DescribeTransactions", transactional_ids=["busy", "none", ""]).transaction_states
    assert (described[0].transaction_state, described[0].transaction_timeout_ms) == ("Ongoing", 30_000)
    assert (described[0].producer_id, described[0].producer_epoch) == producer
    assert [(t.topic, t.partitions) for t in described[0].topics] == [("t", [0, 1]), ("u", [0])]
    errors = [d.error_code for d in described]
    assert errors == [OK, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]


def test_markers_written_by_hand(broker: TxnBroker) -> None:
    request = messages.WriteTxnMarkersRequest
    topics = [request.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])]
    marker = request.WritableTxnMarker(producer_id=5, producer_epoch=2, transaction_result=False, topics=topics)
    response = broker.send("WriteTxnMarkers", markers=[marker])
    errors = {p.partition_index: p.error_code for t in response.markers[0].topics for p in t.partitions}
    assert errors == {0: OK, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.partitions.markers == [Marker(("t", 0), 5, 2, False)]
