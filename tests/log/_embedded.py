"""Calls an embedded broker by message objects."""

from typing import Any

from logflume.log.server import EmbeddedBroker

from ._wire import create_topic_request, produce_request


class Calls:
    """Requests of a test to an embedded broker; waits for each answer."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker

    def __call__(self, message: Any, version: int) -> Any:
        name = type(message).__name__.removesuffix("Request")
        return self.broker.submit(name, version, message).result(60)

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Create a topic; returns its result."""
        (result,) = self(create_topic_request(name, partitions, **configs), 7).topics
        return result

    def produce(self, topic: str, *batches: bytes | None, version: int = 9, acks: int = -1) -> list[Any]:
        """Produce one batch for each of partitions 0, 1, ...; returns the partition responses."""
        (result,) = self(produce_request(topic, *batches, acks=acks), version).responses
        return list(result.partition_responses)
