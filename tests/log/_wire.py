"""Speaks raw frames to a broker over a socket."""

import socket
from typing import Any

from logflume.log.batch import encode_batch
from logflume.log.protocol import frames, messages


class Wire:
    """A connection on which requests are sent as they are."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection((host, port), timeout=20)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, message: Any, version: int, *, correlation_id: int = 1) -> None:
        self.sock.sendall(b"".join(frames.request_frame(message, version, correlation_id, "wire")))

    def receive(self, message_class: Any, version: int) -> tuple[int, Any]:
        """Return (correlation id, response)."""
        frame = memoryview(self.receive_frame())
        return frames.correlation_id(frame), frames.decode_response(frame, message_class.api_key, version)

    def receive_frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def call(self, message: Any, version: int) -> Any:
        self.send(message, version)
        return self.receive(type(message), version)[1]

    def is_closed_by_broker(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data


def batch(*values: bytes | None, key: bytes | None = b"k", timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytes:
    """One record batch with these values."""
    return bytes(encode_batch([key] * len(values), list(values), [timestamp_ms] * len(values), **fields))


def produce_request(topic: str, *batches: bytes | None, acks: int = -1, transactional_id: str | None = None) -> Any:
    """A Produce request with one batch for each of partitions 0, 1, ..."""
    request = messages.ProduceRequest
    return request(
        acks=acks,
        timeout_ms=5_000,
        transactional_id=transactional_id,
        topic_data=[
            request.TopicProduceData(
                name=topic, partition_data=[request.PartitionProduceData(index=i, records=each) for i, each in enumerate(batches)]
            )
        ],
    )


def fetch_request(
    topic: str, offsets: dict[int, int], *, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 10**7, **fields: Any
) -> Any:
    """A Fetch request (version 12 or older) of partition -> offset."""
    request = messages.FetchRequest
    partition_max_bytes = fields.pop("partition_max_bytes", 10**6)
    return request(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            request.FetchTopic(
                topic=topic,
                partitions=[
                    request.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
                    for index, offset in offsets.items()
                ],
            )
        ]
        if offsets
        else [],
        **fields,
    )


def create_topic_request(name: str, partitions: int = 1, **configs: str) -> Any:
    """A CreateTopics request; configs with `_` for `.`."""
    request = messages.CreateTopicsRequest
    return request(
        topics=[
            request.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
            )
        ]
    )
