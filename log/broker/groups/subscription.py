"""The consumer's embedded protocol: what members of classic groups say to each other, as far as the coordinator needs it.

Classic groups carry opaque metadata; that of the protocol type `consumer` starts with a version (int16), then a
ConsumerProtocolSubscription or ConsumerProtocolAssignment of the Kafka protocol guide follows. Newer versions are read as the
newest known, as Kafka does. The bytes come from clients: everything is bounds-checked and raises DecodeError.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logflume.log.broker.record_fields import FieldReader
from logflume.log.errors import DecodeError
from logflume.log.protocol import codec, messages

NEWEST_VERSION = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants, and the (topic, index) that it says it has; `version`: of the bytes it was read from."""

    version: int
    topics: frozenset[str]
    owned: frozenset[tuple[str, int]]
    rack_id: str | None


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics, None when the bytes are not a consumer's subscription."""
    try:
        reader = FieldReader(metadata)
        reader.take("h")
        return frozenset(reader.text() for _ in range(reader.count()))
    except DecodeError:
        return None


def read_subscription(metadata: bytes) -> Subscription:
    """Raises DecodeError."""
    version = version_of(metadata)
    # What a newer version adds stands at the end; older readers leave it.
    body = codec.decode_data("ConsumerProtocolSubscription", min(version, NEWEST_VERSION), metadata[2:], may_go_on=True)
    owned = frozenset((part.topic, index) for part in body.owned_partitions for index in part.partitions)
    return Subscription(version, frozenset(body.topics), owned, body.rack_id)


def read_assignment(data: bytes) -> tuple[frozenset[tuple[str, int]], bool]:
    """Return the (topic, index) of an assignment, and whether an assignor of the client's added data of its own.

    Raises DecodeError.
    """
    if not data:
        return frozenset(), False
    body = codec.decode_data("ConsumerProtocolAssignment", min(version_of(data), NEWEST_VERSION), data[2:], may_go_on=True)
    return frozenset((part.topic, i) for part in body.assigned_partitions for i in part.partitions), bool(body.user_data)


def write_assignment(partitions: Iterable[tuple[str, int]], version: int) -> bytes:
    """Return an assignment in a version, at most the newest known."""
    version = max(0, min(version, NEWEST_VERSION))
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    part = messages.ConsumerProtocolAssignment.TopicPartition
    parts = [part(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
    return version.to_bytes(2, "big") + codec.encode_data(messages.ConsumerProtocolAssignment(assigned_partitions=parts), version)


def version_of(data: bytes) -> int:
    """Return the version in front of metadata or an assignment. Raises DecodeError."""
    version: int = FieldReader(data).take("h")
    if version < 0:
        raise DecodeError(f"expected a version of the consumer's embedded protocol, found {version}")
    return version
