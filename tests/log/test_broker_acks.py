"""An acknowledged record can be read: neither acks=1 nor acks=all is answered before the record is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import NO_RESPONSE, RequestContext
from logflume.log.protocol import messages
from logflume.log.storage import PartitionLog

from ._simulated_broker import SimulatedBroker, SyncFlusher
from ._wire import batch, produce_request

LATEST = -1


class HeldFlusher:
    """Flushes when told to."""

    def __init__(self) -> None:
        self._held: list[tuple[PartitionLog, Any]] = []

    def request(self, log: PartitionLog, callback: Any) -> None:
        self._held.append((log, callback))

    def release(self) -> None:
        held, self._held = self._held, []
        for log, callback in held:
            SyncFlusher().request(log, callback)


def end_offset(broker: SimulatedBroker) -> int:
    request = messages.ListOffsetsRequest
    partition = request.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    asked = request(topics=[request.ListOffsetsTopic(name="t", partitions=[partition])])
    return int(broker.call(asked, 7).topics[0].partitions[0].offset)


@pytest.mark.parametrize("acks", [1, -1])
def test_an_answer_waits_for_the_disk(tmp_path: Path, acks: int) -> None:
    flusher = HeldFlusher()
    broker = SimulatedBroker(tmp_path, flusher=flusher)
    broker.create("t")
    context = RequestContext(messages.ProduceRequest.api_key, 9, 1, "test", "here", 1)
    outcome = broker.handlers.handle(context, produce_request("t", batch(b"a"), acks=acks))
    assert isinstance(outcome, Reply)
    assert (outcome.is_done, end_offset(broker)) == (False, 0)
    flusher.release()
    assert (outcome.value.responses[0].partition_responses[0].error_code, end_offset(broker)) == (0, 1)
    assert broker.handlers.handle(context, produce_request("t", batch(b"b"), acks=0)) is NO_RESPONSE
    broker.close()
