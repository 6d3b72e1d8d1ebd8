"""Our own client, which is of transaction version 2, against a broker process: an epoch for each transaction (KIP-890)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, connect
from logflume.log.interfaces import NO_TIMEOUT_MS, GroupMetadata, OffsetAndMetadata
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode
from logflume.log.records import TopicPartition

from ._server_process import ServerProcess
from ._wire import Wire

TIMEOUT_S = 20


def describe(server: ServerProcess, name: str) -> Any:
    with Wire(server.port) as wire:
        return wire.call(messages.DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states[0]


def values(log: Any, topic: str) -> list[bytes]:
    """Read what is committed, up to the end that read_committed sees."""
    partition = TopicPartition(topic, 0)
    consumer = log.consumer(read_committed=True)
    consumer.assign([partition])
    end = log.admin().end_offsets([partition], read_committed=True)[partition]
    found: list[bytes] = []
    while consumer.position(partition) < end:
        for chunk in consumer.poll(timeout_s=TIMEOUT_S):
            found += chunk.values()
    consumer.close()
    return found


def test_every_transaction_has_an_epoch_of_its_own(server: ServerProcess, topic: str) -> None:
    with connect(server.address) as log:
        log.admin().create_topic(topic, partitions=1)
        producer = log.producer(transactional_id=topic)
        producer.init_transactions()
        epochs = []
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            offsets = {TopicPartition(topic, 0): OffsetAndMetadata(number + 1)}
            producer.send_offsets(offsets, GroupMetadata(f"{topic}-group", -1, ""))
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            state = describe(server, topic)
            epochs.append(state.producer_epoch)
            assert state.transaction_state == ("CompleteAbort" if number % 2 else "CompleteCommit")
            assert values(log, topic) == [b"%d" % n for n in range(number + 1) if n % 2 == 0]
        assert epochs == [1, 2, 3, 4]
        committed = log.admin().group_offsets(f"{topic}-group")
        assert committed[TopicPartition(topic, 0)].offset == 3
        producer.close()


def test_a_late_end_and_late_data_are_fenced(server: ServerProcess, topic: str) -> None:
    with connect(server.address) as log:
        log.admin().create_topic(topic, partitions=1)
        producer = log.producer(transactional_id=topic)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first").result(TIMEOUT_S)
        open_state = describe(server, topic)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"second").result(TIMEOUT_S)
        with Wire(server.port) as wire:
            late = messages.EndTxnRequest(
                transactional_id=topic,
                producer_id=open_state.producer_id,
                producer_epoch=open_state.producer_epoch,
                committed=True,
            )
            assert wire.call(late, 5).error_code == ErrorCode.PRODUCER_FENCED
        assert values(log, topic) == [b"first"]
        producer.abort_transaction()
        assert values(log, topic) == [b"first"]
        producer.close()


def test_a_decided_transaction_is_finished_after_a_kill(tmp_path: Path, topic: str) -> None:
    server = ServerProcess(str(tmp_path / "data"))
    with connect(server.address) as log:
        log.admin().create_topic(topic, partitions=1)
        producer = log.producer(transactional_id=topic)
        producer.init_transactions()
        for number in range(5):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            producer.commit_transaction()
            server.kill()
            server.start()
            assert values(log, topic) == [b"%d" % n for n in range(number + 1)]
        producer.close()
    assert server.stop() == 0


def test_an_unknown_transactional_id_is_refused(server: ServerProcess, topic: str) -> None:
    assert describe(server, topic).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with connect(server.address) as log, pytest.raises(Exception, match=r"(?i)timeout"):
        log.producer(transactional_id=topic, transaction_timeout_ms=10_000_000).init_transactions()


@pytest.mark.parametrize(
    ("timeout_ms", "message"),
    [(0, "above 0, found 0"), (-1, "above 0"), (NO_TIMEOUT_MS, r"two\.phase\.commit.*TWO_PHASE_COMMIT")],
)
def test_a_time_out_that_cannot_be_is_refused_in_words(server: ServerProcess, topic: str, timeout_ms: int, message: str) -> None:
    with connect(server.address) as log, pytest.raises(InvalidInput, match=message):
        log.producer(transactional_id=topic).init_transactions(transaction_timeout_ms=timeout_ms)
