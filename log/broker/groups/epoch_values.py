"""Decodes the values of records of groups with epochs, by their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from .consumer.records import decode_consumer_value
from .epoch_records import EpochKey, GroupKind, Role
from .share.records import decode_share_value
from .streams.records import decode_streams_value

DECODERS: Mapping[GroupKind, Callable[[Role, bytes], Any]] = MappingProxyType(
    {
        GroupKind.CONSUMER: decode_consumer_value,
        GroupKind.SHARE: decode_share_value,
        GroupKind.STREAMS: decode_streams_value,
    }
)


def decode_epoch_value(key: EpochKey, data: bytes) -> Any:
    """Return a dataclass of the protocol's `records`. Raises DecodeError."""
    return DECODERS[key.kind](key.role, data)
