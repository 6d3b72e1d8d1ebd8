"""Transactions as their producers see them: epochs, fencing, both client generations, timeouts, retries, every error code."""

from typing import Any

import pytest

from logflume.log.broker.access import UNRESTRICTED, Operation, Resource, Rights
from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.replies import Reply
from logflume.log.broker.transactions import TransactionConfig
from logflume.log.broker.transactions.end_rules import decide_end
from logflume.log.broker.transactions.metadata import LAST_USABLE_EPOCH, MAX_EPOCH, Txn, TxnState
from logflume.log.interfaces import NO_TIMEOUT_MS
from logflume.log.protocol.errors import ErrorCode

from ._transactions_harness import Marker, TxnBroker, ended

OK, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
CONCURRENT, MAPPING = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING
BAD_STATE, OLD_EPOCH = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH
NOTHING = (-1, -1)


@pytest.fixture
def broker() -> TxnBroker:
    return TxnBroker()


def with_epoch(broker: TxnBroker, epoch: int) -> tuple[int, int]:
    """Make a producer that holds this epoch."""
    producer_id, _ = broker.started()
    slot = broker.txns._slots["tx"]
    slot.txn = Txn("tx", producer_id, epoch, 60_000, slot.txn.update_ms)
    return producer_id, epoch


# -- InitProducerId


def test_a_new_id_begins_at_epoch_zero(broker: TxnBroker) -> None:
    assert broker.init() == (OK, 1000, 0)
    assert broker.init("other") == (OK, 1001, 0)


def test_every_start_fences_the_one_before(broker: TxnBroker) -> None:
    first = broker.started()
    second = broker.started()
    assert second == (first[0], first[1] + 1)
    assert broker.add(first, ("t", 0)) == [FENCED]
    assert broker.produce(first, ("t", 0)) == OLD_EPOCH
    assert broker.end(first) == (FENCED, *NOTHING)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_a_start_is_refused(broker: TxnBroker, options: dict[str, Any], error: ErrorCode) -> None:
    assert broker.init(**options) == (error, *NOTHING)
    assert list(broker.txns.transactions()) == []


@pytest.mark.parametrize("version", range(6))
def test_every_version_starts(broker: TxnBroker, version: int) -> None:
    assert broker.init(version=version) == (OK, 1000, 0)


def test_a_producer_goes_on_after_an_error(broker: TxnBroker) -> None:
    producer = broker.started()
    assert broker.init(producer=producer) == (OK, producer[0], 1)
    assert broker.init(producer=producer) == (OK, producer[0], 1), "the response was lost; a retry changes nothing"
    assert broker.init(producer=(producer[0], 1)) == (OK, producer[0], 2)


def test_a_producer_that_was_replaced_cannot_go_on(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.started()
    assert broker.init(producer=producer) == (FENCED, *NOTHING)
    assert broker.init(producer=producer, version=3) == (OLD_EPOCH, *NOTHING), "older clients know it by this code"
    assert broker.init(producer=(4711, 0)) == (FENCED, *NOTHING)


def test_a_zombie_cannot_abort_its_successors_transaction(broker: TxnBroker) -> None:
    zombie = broker.started()
    producer = broker.started()
    broker.add(producer, ("t", 0))
    assert broker.init(producer=zombie) == (FENCED, *NOTHING)
    assert broker.state() == "Ongoing"


def test_a_start_aborts_what_is_open(broker: TxnBroker) -> None:
    broker.partitions.is_manual = True
    old = broker.started()
    broker.add(old, ("t", 0), ("t", 1))
    assert broker.init() == (CONCURRENT, *NOTHING)
    assert broker.init() == (CONCURRENT, *NOTHING)
    assert broker.state() == "PrepareAbort"
    broker.partitions.flush()
    assert {m.where for m in broker.partitions.markers} == {("t", 0), ("t", 1)}
    assert all(not m.is_commit and m.epoch == 1 for m in broker.partitions.markers)
    assert broker.state() == "CompleteAbort"
    assert broker.init() == (OK, old[0], 2)
    assert broker.end(old) == (FENCED, *NOTHING)


def test_a_producer_that_starts_over_in_the_middle(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0))
    assert broker.init(producer=producer) == (CONCURRENT, *NOTHING)
    assert broker.init(producer=producer) == (OK, producer[0], 1), "the abort bumped the epoch; once is enough"


def test_used_up_epochs_bring_a_new_producer_id(broker: TxnBroker) -> None:
    old = with_epoch(broker, LAST_USABLE_EPOCH)
    assert broker.init() == (OK, 1001, 0)
    assert broker.txns.transaction("tx").previous_producer_id == old[0]  # type: ignore[union-attr]
    assert broker.init(producer=old) == (OK, 1001, 0), "a retry of the call that brought the new id"


def test_fencing_at_the_last_epoch(broker: TxnBroker) -> None:
    producer = with_epoch(broker, LAST_USABLE_EPOCH)
    broker.add(producer, ("t", 0))
    assert broker.init() == (CONCURRENT, *NOTHING)
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], MAX_EPOCH, False)]
    assert broker.init() == (OK, 1001, 0)


def test_a_start_waits_for_the_disk(broker: TxnBroker) -> None:
    broker.journal.is_manual = True
    waiting = broker.init()
    assert isinstance(waiting, Reply)
    assert broker.init() == (CONCURRENT, *NOTHING)
    assert broker.txns.transaction("tx") is None
    broker.journal.flush()
    assert waiting.value.producer_id == 1000


def test_a_start_that_cannot_be_stored(broker: TxnBroker) -> None:
    broker.journal.is_failing = True
    assert broker.init() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, *NOTHING)
    broker.journal.is_failing = False
    assert broker.init()[0] == OK


# -- adding partitions


def test_adding_begins_a_transaction(broker: TxnBroker) -> None:
    producer = broker.started()
    assert broker.state() == "Empty"
    assert broker.add(producer, ("t", 0), ("u", 1)) == [OK, OK]
    assert broker.state() == "Ongoing"
    assert broker.produce(producer, ("t", 0), can_add=False) == OK
    assert broker.produce(producer, ("t", 1), can_add=False) == BAD_STATE


@pytest.mark.parametrize(
    ("name", "producer", "error"),
    [
        ("", (1000, 0), ErrorCode.INVALID_REQUEST),
        ("none", (1000, 0), MAPPING),
        ("tx", (4711, 0), MAPPING),
        ("tx", (1000, 1), FENCED),
    ],
)
def test_adding_is_refused(broker: TxnBroker, name: str, producer: tuple[int, int], error: ErrorCode) -> None:
    assert broker.started() == (1000, 0)
    assert broker.add(producer, ("t", 0), name=name) == [error]
    offsets = broker.send(
        "AddOffsetsToTxn", transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], group_id="g"
    )
    assert offsets.error_code == error
    old = OLD_EPOCH if error == FENCED else error
    assert broker.add(producer, ("t", 0), name=name, version=1) == [old]


def test_all_partitions_or_none(broker: TxnBroker) -> None:
    producer = broker.started()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.add(producer, ("t", 0), ("none", 0)) == [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown]
    assert broker.state() == "Empty"


def test_adding_again_writes_nothing(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0))
    before = broker.journal.appended
    assert broker.add(producer, ("t", 0)) == [OK]
    assert broker.journal.appended == before


def test_offsets_belong_to_the_groups_partition(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.send("AddOffsetsToTxn", transactional_id="tx", producer_id=producer[0], producer_epoch=0, group_id="g")
    broker.end(producer)
    assert [m.where for m in broker.partitions.markers] == [("__consumer_offsets", partition_of("g", 50))]


def test_several_additions_on_their_way(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.journal.is_manual = True
    replies = [broker.produce(producer, ("t", p)) for p in range(3)]
    assert all(isinstance(reply, Reply) and not reply.is_done for reply in replies)
    assert broker.produce(producer, ("t", 0), can_add=False) == BAD_STATE, "not on disk yet"
    broker.journal.flush()
    assert [reply.value for reply in replies] == [OK, OK, OK]
    assert broker.txns.transaction("tx").partitions == {("t", 0), ("t", 1), ("t", 2)}  # type: ignore[union-attr]


def test_batched_additions_and_verification(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0))
    one = {
        "transactional_id": "tx",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "topics": [{"name": "t", "partitions": [0, 1]}],
    }

    def results(**change: Any) -> list[int]:
        from logflume.log.protocol import messages

        request = messages.AddPartitionsToTxnRequest
        fields = {**one, **change}
        fields["topics"] = [request.AddPartitionsToTxnTopic(**topic) for topic in fields["topics"]]  # type: ignore[attr-defined]
        txn = request.AddPartitionsToTxnTransaction(**fields)
        response = broker.send("AddPartitionsToTxn", version=5, transactions=[txn])
        return [p.partition_error_code for t in response.results_by_transaction[0].topic_results for p in t.results_by_partition]

    assert results(verify_only=True) == [OK, BAD_STATE]
    assert results(verify_only=False) == [OK, OK]
    assert results(verify_only=True) == [OK, OK]
    assert results(producer_epoch=7) == [FENCED, FENCED]


# -- EndTxn


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_marks_every_partition_and_bumps_the_epoch(broker: TxnBroker, is_commit: bool) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    broker.produce(producer, ("u", 1))
    assert broker.end(producer, is_commit=is_commit) == (OK, producer[0], 1)
    assert broker.partitions.markers == [Marker(w, producer[0], 1, is_commit) for w in [("t", 0), ("u", 1)]]
    assert broker.state() == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert broker.produce(producer, ("t", 0)) == OLD_EPOCH, "what is late cannot slip into the next transaction"
    assert broker.produce((producer[0], 1), ("t", 0)).value == OK


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", range(5))
def test_older_clients_keep_their_epoch(broker: TxnBroker, is_commit: bool, version: int) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0), version=min(version, 3))
    assert broker.end(producer, is_commit=is_commit, version=version) == (OK, *NOTHING)
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], 0, is_commit)]
    assert broker.produce(producer, ("t", 0), can_add=False) == BAD_STATE
    assert broker.end(producer, is_commit=is_commit, version=version) == (OK, *NOTHING), "a repeated end succeeds"
    assert broker.end(producer, is_commit=not is_commit, version=version) == (BAD_STATE, *NOTHING)
    assert broker.add(producer, ("t", 0)) == [OK]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_repeated_end_succeeds(broker: TxnBroker, is_commit: bool) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    first = broker.end(producer, is_commit=is_commit)
    assert broker.end(producer, is_commit=is_commit) == first
    other = BAD_STATE if is_commit else FENCED
    assert broker.end(producer, is_commit=not is_commit) == (other, *NOTHING)


def test_an_end_cannot_hit_the_next_transaction(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    following = broker.end(producer)[1:]
    broker.produce(following, ("t", 1))
    assert broker.end(producer, is_commit=True) == (FENCED, *NOTHING)
    assert broker.end(producer, is_commit=False) == (FENCED, *NOTHING)
    assert broker.state() == "Ongoing"


def test_the_answer_waits_for_the_markers(broker: TxnBroker) -> None:
    broker.partitions.is_manual = True
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    waiting = broker.end(producer)
    repeated = broker.end(producer)
    assert isinstance(waiting, Reply)
    assert isinstance(repeated, Reply)
    assert broker.end(producer, is_commit=False) == (BAD_STATE, *NOTHING)
    assert broker.produce((producer[0], 1), ("t", 0)).value == CONCURRENT
    broker.partitions.flush()
    assert ended(waiting.value) == ended(repeated.value) == (OK, producer[0], 1)


def test_the_answer_does_not_wait_forever(broker: TxnBroker) -> None:
    broker.partitions.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    waiting = broker.end(producer)
    assert not waiting.is_done
    broker.time.advance(10_000)
    assert ended(waiting.value) == (OK, producer[0], 1)
    assert broker.state() == "PrepareCommit"
    broker.partitions.errors.clear()
    broker.time.advance(5_000)
    assert broker.state() == "CompleteCommit"
    assert len(broker.partitions.markers) == 1


def test_an_end_is_announced_when_all_partitions_have_answered(broker: TxnBroker) -> None:
    """Whoever learns of a commit from the offsets of a group finds its records in all partitions."""
    producer = broker.started()
    broker.add(producer, ("__consumer_offsets", 0), ("t", 0), ("t", 1))
    broker.partitions.is_manual = True
    waiting = broker.end(producer)
    for _ in range(2):
        broker.partitions.flush(count=1)
        assert broker.partitions.announced == []
    broker.partitions.flush(count=1)
    assert broker.partitions.announced == [("__consumer_offsets", 0), ("t", 0), ("t", 1)]
    assert waiting.is_done


def test_a_partition_that_cannot_be_written_holds_up_no_announcement(broker: TxnBroker) -> None:
    broker.partitions.errors["t", 0] = ErrorCode.KAFKA_STORAGE_ERROR
    producer = broker.started()
    broker.add(producer, ("__consumer_offsets", 0), ("t", 0))
    broker.end(producer)
    assert broker.partitions.announced == [("__consumer_offsets", 0)]
    broker.partitions.errors.clear()
    broker.time.advance(5_000)
    assert broker.partitions.announced == [("__consumer_offsets", 0), ("t", 0)]


def test_markers_of_deleted_topics_are_left_out(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0), ("u", 0))
    del broker.partitions.counts["u"]
    assert broker.end(producer)[0] == OK
    assert [m.where for m in broker.partitions.markers] == [("t", 0)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("name", "producer", "error"),
    [
        ("", (1000, 0), ErrorCode.INVALID_REQUEST),
        ("none", (1000, 0), MAPPING),
        ("tx", (4711, 0), MAPPING),
        ("tx", (1000, 1), FENCED),
        ("tx", (1000, 0), BAD_STATE),
    ],
)
def test_an_end_is_refused(broker: TxnBroker, name: str, producer: tuple[int, int], error: ErrorCode, version: int) -> None:
    assert broker.started() == (1000, 0)
    assert broker.end(producer, name=name, version=version) == (error, *NOTHING)


def test_the_oldest_clients_know_fencing_by_the_epoch_error(broker: TxnBroker) -> None:
    broker.started()
    assert broker.end((1000, 9), version=1) == (OLD_EPOCH, *NOTHING)


def test_an_abort_of_nothing_bumps_the_epoch(broker: TxnBroker) -> None:
    producer = broker.started()
    assert broker.end(producer, is_commit=False) == (OK, producer[0], 1)
    assert broker.end((producer[0], 1), is_commit=False) == (OK, producer[0], 2)
    assert broker.partitions.markers == []
    assert broker.end((producer[0], 2), is_commit=True) == (BAD_STATE, *NOTHING)


def test_the_end_that_uses_up_the_epochs_brings_a_new_id(broker: TxnBroker) -> None:
    producer = with_epoch(broker, LAST_USABLE_EPOCH)
    broker.produce(producer, ("t", 0))
    assert broker.end(producer) == (OK, 1001, 0)
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], MAX_EPOCH, True)]
    assert broker.end(producer) == (OK, 1001, 0), "also when it is repeated"
    assert broker.produce((1001, 0), ("t", 0)).value == OK


def test_the_new_id_while_the_old_ones_end_is_under_way(broker: TxnBroker) -> None:
    broker.partitions.is_manual = True
    producer = with_epoch(broker, LAST_USABLE_EPOCH)
    broker.produce(producer, ("t", 0))
    broker.end(producer)
    broker.time.advance(1_000)
    assert broker.produce((1001, 0), ("t", 0)) == CONCURRENT
    assert broker.add((1001, 0), ("t", 0)) == [CONCURRENT]


def test_an_end_that_cannot_be_stored_can_be_repeated(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.produce(producer, ("t", 0))
    broker.journal.is_failing = True
    assert broker.end(producer) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, *NOTHING)
    assert broker.end(producer, is_commit=False)[0] != OK, "a partition has the marker of its commit"
    waiting = broker.end(producer)
    broker.time.advance(10_000)
    assert ended(waiting.value)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.is_failing = False
    broker.time.advance(100)
    assert broker.end(producer)[0] == OK
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], 1, True)]


def test_nothing_else_happens_while_a_decision_is_on_its_way(broker: TxnBroker) -> None:
    producer = broker.started()
    broker.add(producer, ("t", 0))
    broker.journal.is_manual = True
    deciding = broker.end(producer)
    assert broker.end(producer) == (CONCURRENT, *NOTHING)
    assert broker.add(producer, ("t", 1)) == [CONCURRENT]
    assert broker.produce(producer, ("t", 0), can_add=False) == BAD_STATE
    assert broker.init() == (CONCURRENT, *NOTHING)
    broker.journal.flush()
    assert ended(deciding.value)[0] == OK


# -- timeouts


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.add(producer, ("t", 0))
    broker.time.advance(4_999)
    assert broker.state() == "Ongoing"
    broker.time.advance(1)
    assert broker.state() == "CompleteAbort"
    assert broker.partitions.markers == [Marker(("t", 0), producer[0], 1, False)]
    assert broker.produce(producer, ("t", 0), can_add=False) == OLD_EPOCH
    for version in (4, 5):
        assert broker.end(producer, is_commit=True, version=version) == (FENCED, *NOTHING)
        assert broker.end(producer, is_commit=False, version=version) == (FENCED, *NOTHING)
    assert broker.init(producer=producer) == (FENCED, *NOTHING)
    assert broker.init() == (OK, producer[0], 2)


def test_a_late_commit_that_races_with_the_abort_is_fenced(broker: TxnBroker) -> None:
    broker.partitions.is_manual = True
    producer = broker.started(timeout_ms=5_000)
    broker.add(producer, ("t", 0))
    broker.journal.is_manual = True
    broker.time.advance(5_000)
    assert broker.end(producer) == (CONCURRENT, *NOTHING), "the decision is on its way: ask again"
    broker.journal.flush()
    assert broker.state() == "PrepareAbort"
    assert broker.end(producer) == (FENCED, *NOTHING)
    broker.partitions.flush()
    assert broker.end(producer) == (FENCED, *NOTHING)


def test_the_time_counts_from_the_beginning_of_the_transaction(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.time.advance(10_000)
    broker.add(producer, ("t", 0))
    broker.time.advance(3_000)
    broker.add(producer, ("t", 1))
    broker.time.advance(2_000)
    assert broker.state() == "CompleteAbort"


class AllButUnlimited:
    """Rights to everything but a transaction without a time-out."""

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, resource) != (Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        return True


def test_a_transaction_without_a_time_out_is_ended_by_its_producer_or_the_next() -> None:
    broker = TxnBroker(config=TransactionConfig(has_unlimited=True))
    producer = broker.started(timeout_ms=NO_TIMEOUT_MS)
    broker.add(producer, ("t", 0))
    month_ms = 31 * 24 * 3_600_000
    broker.time.advance(month_ms)
    broker.crash()
    broker.time.advance(month_ms)
    assert broker.state() == "Ongoing"
    assert broker.end(producer)[0] == OK
    producer = broker.started(timeout_ms=NO_TIMEOUT_MS)
    broker.add(producer, ("t", 0))
    assert broker.init(timeout_ms=5_000) == (CONCURRENT, *NOTHING)
    assert broker.state() == "CompleteAbort"
    producer = broker.started(timeout_ms=5_000)
    broker.add(producer, ("t", 0))
    broker.time.advance(5_000)
    assert broker.state() == "CompleteAbort", "it has the time-out of its last start"


@pytest.mark.parametrize("max_timeout_ms", [900_000, NO_TIMEOUT_MS - 1, NO_TIMEOUT_MS])
@pytest.mark.parametrize(("is_on", "rights"), [(False, UNRESTRICTED), (True, AllButUnlimited())])
def test_a_transaction_without_a_time_out_is_for_those_who_may(is_on: bool, rights: Rights, max_timeout_ms: int) -> None:
    broker = TxnBroker(config=TransactionConfig(has_unlimited=is_on, max_timeout_ms=max_timeout_ms))
    broker.rights = rights
    assert broker.init(timeout_ms=NO_TIMEOUT_MS) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, *NOTHING)
    assert broker.init(timeout_ms=min(max_timeout_ms + 1, NO_TIMEOUT_MS)) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, *NOTHING)
    assert broker.init() == (OK, 1000, 0)


def test_an_abort_that_cannot_be_stored_is_tried_again(broker: TxnBroker) -> None:
    producer = broker.started(timeout_ms=5_000)
    broker.add(producer, ("t", 0))
    broker.journal.is_failing = True
    broker.time.advance(6_000)
    assert broker.state() == "Ongoing"
    broker.journal.is_failing = False
    broker.time.advance(200)
    assert broker.state() == "CompleteAbort"


def test_ids_that_nobody_uses_are_forgotten() -> None:
    broker = TxnBroker(config=TransactionConfig(id_expiration_ms=10_000, expiry_check_interval_ms=1_000))
    broker.started("idle")
    producer = broker.started("busy", timeout_ms=60_000)
    broker.add(producer, ("t", 0), name="busy")
    broker.time.advance(11_001)
    assert broker.state("idle") == "none"
    assert broker.state("busy") == "Ongoing"
    broker.crash()
    assert broker.state("idle") == "none"
    assert broker.init("idle", producer=(1000, 0))[0] == OK, "a producer that comes back starts anew"


# -- the rules of EndTxn as a table

STATES = [TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("offset", [-2, 1])
def test_no_end_of_a_wrong_epoch_ever_counts(state: TxnState, is_commit: bool, offset: int) -> None:
    txn = Txn("tx", 7, 10, 60_000, 0, state=state, client_version=2)
    assert decide_end(txn, 7, 10 + offset, is_commit=is_commit, is_bumping=True) == FENCED
    assert decide_end(txn, 7, 10 + offset, is_commit=is_commit, is_bumping=False) == FENCED


def test_transactional_ids_are_bounded_in_number_and_length() -> None:
    hour_ms = 3_600_000
    broker = TxnBroker(config=TransactionConfig(max_ids=3, id_expiration_ms=hour_ms, expiry_check_interval_ms=hour_ms))
    for name in ("a", "b", "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 1024):
        assert broker.init(name)[0] == ErrorCode.NONE
    assert broker.init("d")[0] == ErrorCode.POLICY_VIOLATION
    assert broker.init("a")[0] == ErrorCode.NONE, "who is known goes on"
    for name in ("x" * 1025, "x" * 32_000, ""):
        assert broker.init(name)[0] == ErrorCode.INVALID_REQUEST
    assert len(list(broker.txns.transactions())) == 3
    broker.crash()
    assert broker.init("d")[0] == ErrorCode.POLICY_VIOLATION
    broker.time.advance(2 * hour_ms)
    assert broker.init("d")[0] == ErrorCode.NONE, "those that nobody used for long are forgotten"
