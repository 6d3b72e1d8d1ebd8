"""What the coordinator reads of a consumer's own protocol: the subscribed topics.

Classic groups carry opaque metadata; that of the protocol type `consumer` starts with a version (int16) and the topic names
(ConsumerProtocolSubscription of the Kafka protocol guide). The rest belongs to the assignor.
"""

from __future__ import annotations

from ...errors import DecodeError
from ..record_fields import FieldReader


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics, None when the bytes are not a consumer's subscription."""
    try:
        reader = FieldReader(metadata)
        reader.take("h")
        return frozenset(reader.text() for _ in range(reader.count()))
    except DecodeError:
        return None
