"""Which versions of each API this client sends: the highest that the broker, the message tables and this client hold.

The caps leave out versions whose form this client does not use: topic ids instead of names (Produce 13, Fetch 13,
OffsetCommit 10, OffsetFetch 10), lists of several groups or transactions (FindCoordinator 4, OffsetFetch 8,
AddPartitionsToTxn 4, DeleteTopics 6), and the flexible forms of the group APIs, which add nothing here and which the mock
cluster of librdkafka gets wrong; but for JoinGroup 9, which tells a leader that comes back that it still leads (KIP-814).
Apache Kafka 2.1 to 4.x accepts a version below each cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from logflume.log.protocol import ErrorCode, KafkaError, tables

VersionRanges = Mapping[int, tuple[int, int]]
"""API key -> lowest and highest version a broker accepts."""

CAPS = MappingProxyType(
    {
        "Produce": 12,
        "Fetch": 12,
        "OffsetCommit": 9,
        "OffsetFetch": 7,
        "FindCoordinator": 3,
        "JoinGroup": 9,
        "SyncGroup": 3,
        "Heartbeat": 3,
        "LeaveGroup": 3,
        "AddPartitionsToTxn": 3,
        "DeleteTopics": 5,
    }
)
_LEFT_OUT = MappingProxyType({"JoinGroup": range(6, 9)})
"""Versions below a cap that are left out likewise."""
TRANSACTION_V2 = "transaction.version"
"""Finalized feature; level 2 means the broker adds partitions itself and bumps the epoch with each transaction (KIP-890)."""

_NEEDS_TRANSACTION_V2 = MappingProxyType({"Produce": 12, "TxnOffsetCommit": 5, "EndTxn": 5, "AddOffsetsToTxn": 4})


def choose_version(api_key: int, ranges: VersionRanges, *, has_transaction_v2: bool = False, max_version: int = 1 << 15) -> int:
    """Return the version to send.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, the broker has no version in common with this client.
    """
    api = tables.api(api_key)
    low, high = ranges.get(api_key, (0, -1))
    highest = min(high, api.versions.last, CAPS.get(api.name, 1 << 15), max_version)
    if not has_transaction_v2 and api.name in _NEEDS_TRANSACTION_V2:
        highest = min(highest, _NEEDS_TRANSACTION_V2[api.name] - 1)
    if highest in _LEFT_OUT.get(api.name, ()):
        highest = _LEFT_OUT[api.name].start - 1
    if highest < max(low, api.versions.first):
        found = f"{low} to {high}" if high >= low else "none"
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{api.name}: this client needs a version of {api.versions.first} to {CAPS.get(api.name, api.versions.last)}, "
            f"the broker has {found}",
        )
    return highest
