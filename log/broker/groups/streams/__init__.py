"""Streams groups (KIP-1071): the broker shares out the tasks of a Kafka Streams application and makes its internal topics."""

from .group import StreamsGroup
from .groups import StreamsGroups, StreamsHeartbeat, StreamsResult

__all__ = ["StreamsGroup", "StreamsGroups", "StreamsHeartbeat", "StreamsResult"]
