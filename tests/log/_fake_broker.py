"""A broker at the level of the protocol that fails on purpose: for what a healthy broker never does.

It answers ApiVersions, Metadata, InitProducerId and Produce over TCP, keeps records in lists, and checks the sequences of
idempotent producers as a broker does. Before each partition of a Produce it asks `plan` what to do.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Any

from logflume.log.batch import BatchHeader, decode_records, parse_header
from logflume.log.protocol import ErrorCode, codec, frames, messages


class Fault(Enum):
    """What may happen to a Produce."""

    NONE = "append and answer"
    REFUSE = "answer NOT_LEADER_OR_FOLLOWER without appending"
    LOSE_REQUEST = "close the connection without appending"
    LOSE_ANSWER = "append, then close the connection"
    TOO_LARGE = "answer MESSAGE_TOO_LARGE if there is more than one record"
    REJECT = "answer INVALID_RECORD, for good"


class FakeBroker:
    """Context manager; `address` is host:port. `logs`: (topic, partition) -> values in the order appended."""

    def __init__(self, topics: dict[str, int], plan: Callable[[], Fault] = lambda: Fault.NONE) -> None:
        self.topics = topics
        self.logs: dict[tuple[str, int], list[bytes | None]] = {(t, p): [] for t, n in topics.items() for p in range(n)}
        self.address = ""
        self.ranges = [(0, 3, 11), (3, 0, 12), (18, 0, 3), (22, 0, 4)]
        """(API key, lowest, highest version)"""
        self.leader_epoch = 0
        self.produces: list[list[tuple[str, int]]] = []
        """The partitions of each Produce."""
        self._plan = plan
        self._producers: dict[tuple[int, str, int], list[tuple[int, int, int, int]]] = {}
        self._next_producer_id = 1000
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result()
        self._port = server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        async def stop() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                frame = memoryview(await reader.readexactly(size))
                header, position = frames.decode_request_header(frame)
                request = codec.decode_request(header.api_key, header.api_version, frame[position:])
                response = getattr(self, "_" + type(request).__name__)(request)
                if response is None:
                    return
                writer.writelines(frames.response_frame(response, header.api_version, header.correlation_id))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _ApiVersionsRequest(self, request: Any) -> Any:
        entry = messages.ApiVersionsResponse.ApiVersion
        return messages.ApiVersionsResponse(api_keys=[entry(api_key=k, min_version=a, max_version=b) for k, a, b in self.ranges])

    def _MetadataRequest(self, request: Any) -> Any:
        response = messages.MetadataResponse
        names = list(self.topics) if request.topics is None else [t.name for t in request.topics]
        return response(
            brokers=[response.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self._port)],
            cluster_id="fake",
            controller_id=1,
            topics=[
                response.MetadataResponseTopic(
                    error_code=0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=name,
                    partitions=[
                        response.MetadataResponsePartition(
                            partition_index=p,
                            leader_id=1,
                            leader_epoch=self.leader_epoch,
                            error_code=0,
                            replica_nodes=[1],
                            isr_nodes=[1],
                        )
                        for p in range(self.topics.get(name, 0))
                    ],
                )
                for name in names
            ],
        )

    def _InitProducerIdRequest(self, request: Any) -> Any:
        self._next_producer_id += 1
        return messages.InitProducerIdResponse(error_code=0, producer_id=self._next_producer_id, producer_epoch=0)

    def _ProduceRequest(self, request: Any) -> Any:
        response = messages.ProduceResponse
        topics, is_lost = [], False
        self.produces.append([(topic.name, part.index) for topic in request.topic_data for part in topic.partition_data])
        for topic in request.topic_data:
            answers = []
            for part in topic.partition_data:
                fault = self._plan()
                is_lost = is_lost or fault in (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER)
                code, offset = self._produce(topic.name, part.index, bytes(part.records), fault)
                answers.append(response.PartitionProduceResponse(index=part.index, error_code=code, base_offset=offset))
            topics.append(response.TopicProduceResponse(name=topic.name, partition_responses=answers))
        return None if is_lost else response(responses=topics)

    def _produce(self, topic: str, partition: int, records: bytes, fault: Fault) -> tuple[int, int]:
        header = parse_header(records)
        if fault is Fault.REFUSE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if fault is Fault.TOO_LARGE and header.record_count > 1 and self._find_repetition(topic, partition, header) is None:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if fault is Fault.REJECT and self._find_repetition(topic, partition, header) is None:
            return ErrorCode.INVALID_RECORD, -1
        if fault is Fault.LOSE_REQUEST:
            return ErrorCode.NONE, -1
        return self._append(topic, partition, records)

    def _append(self, topic: str, partition: int, records: bytes) -> tuple[int, int]:
        """Append unless the batch is a repetition or out of order, as a broker's producer state does."""
        header = parse_header(records)
        log = self.logs[(topic, partition)]
        recent = self._producers.setdefault((header.producer_id, topic, partition), [])
        known = self._find_repetition(topic, partition, header)
        if known is not None:
            return ErrorCode.NONE, known[3]
        expected = (recent[-1][2] + 1) & 0x7FFFFFFF if recent else 0
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(log)
        recent.append((header.producer_epoch, header.base_sequence, header.last_sequence, offset))
        log.extend(record.value for record in decode_records(records))
        return ErrorCode.NONE, offset

    def _find_repetition(self, topic: str, partition: int, header: BatchHeader) -> tuple[int, int, int, int] | None:
        """Return what is known of the batch if it is one of the last five of its producer."""
        wanted = (header.producer_epoch, header.base_sequence, header.last_sequence)
        recent = self._producers.get((header.producer_id, topic, partition), [])
        return next((entry for entry in recent[-5:] if entry[:3] == wanted), None)
