"""History is loaded with timestamps of long ago: its producer must not be forgotten for that, or a repeated batch is doubled."""

from __future__ import annotations

from pathlib import Path

from logflume.log import connect
from logflume.log.batch import encode_batch
from logflume.log.client.log import Log
from logflume.log.protocol import messages

from ._server_process import ServerProcess

YEAR_2013_MS = 1_357_000_000_000


def produce_again(log: Log, records: bytes) -> int:
    """Send the very same batch; returns the offset the broker says it has."""
    topic_class = messages.ProduceRequest.TopicProduceData
    partition_class = messages.ProduceRequest.PartitionProduceData
    topic = topic_class(name="t", partition_data=[partition_class(index=0, records=records)])
    response = log.admin().request("Produce", acks=-1, timeout_ms=10_000, topic_data=[topic])
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == 0
    return int(answer.base_offset)


def test_a_repeat_of_an_old_record_after_sigkill_is_known(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path))
    with connect(server.address) as log:
        log.admin().create_topic("t", configs={"retention.ms": "-1"})
        producer_id = log.admin().request("InitProducerId", transactional_id=None, transaction_timeout_ms=0).producer_id
        batches = [
            bytes(encode_batch([None], [b"%d" % i], [YEAR_2013_MS], producer_id=producer_id, producer_epoch=0, base_sequence=i))
            for i in range(2)
        ]
        assert [produce_again(log, batch) for batch in batches] == [0, 1]
        for _ in range(2):
            server.kill()
            server.start()
            assert [produce_again(log, batch) for batch in batches] == [0, 1]
    server.stop()
