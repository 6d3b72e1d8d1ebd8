"""Features of the cluster and their levels (KIP-584): what clients may use, raised and lowered by UpdateFeatures.

Level 0 turns a feature off. The levels and their epoch are kept with the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, messages, tables

from .cluster import ClusterState
from .metadata import DocumentSet

SUPPORTED = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
"""Feature -> its highest level. group.version 1: the consumer protocol (KIP-848); share.version 1: share groups (KIP-932);
streams.version 1: streams groups (KIP-1071); transaction.version 2: an epoch of its own for each transaction (KIP-890)."""

APIS = {
    "group.version": ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
    "share.version": ("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
    "streams.version": ("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
}
"""The APIs that answer UNSUPPORTED_VERSION while their feature is at level 0."""

_DESCRIBE = (messages.ConsumerGroupDescribeRequest, messages.ShareGroupDescribeRequest, messages.StreamsGroupDescribeRequest)
"""The requests among them that name groups, each of which is answered."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
DOCUMENT = "features"


class Features:
    """The finalized levels. Invariant: every level is within what is supported; `epoch` counts the changes."""

    def __init__(self, cluster: ClusterState) -> None:
        """Raises StorageError."""
        self._cluster = cluster
        self.levels, self.epoch = dict(SUPPORTED), 0
        document = cluster.document(DOCUMENT)
        if document is None:
            return
        try:
            self.epoch = int(document["epoch"])
            kept = {name: int(level) for name, level in document["levels"].items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StorageError(
                f"the features in cluster.json cannot be read ({error!r}); restore the file from a backup"
            ) from error
        for name, level in kept.items():
            if not 0 <= level <= SUPPORTED.get(name, 0):
                raise StorageError(f"this cluster uses {name} {level}, which this logflume does not know; use a newer logflume")
        self.levels |= kept

    @property
    def disabled_keys(self) -> frozenset[int]:
        """The API keys whose feature is off."""
        keys = tables.api_names()
        return frozenset(keys[api] for name, apis in APIS.items() if not self.levels[name] for api in apis if api in keys)

    def check(self, name: str, level: int, upgrade_type: int) -> None:
        """Raise KafkaError INVALID_UPDATE_VERSION unless a feature may go to a level in this way."""
        problem = self._problem(name, level, upgrade_type)
        if problem:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name[:99]}. {problem}"
            )

    def _problem(self, name: str, level: int, upgrade_type: int) -> str | None:
        if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return f"Upgrade type {upgrade_type}: expected 1 (upgrade), 2 (safe downgrade) or 3 (unsafe downgrade)."
        if level < 0:
            return "A feature version cannot be less than 0."
        most = SUPPORTED.get(name, 0)
        if level > most:
            known = f"supports versions 0-{most}" if most else f"knows {', '.join(SUPPORTED)}"
            return f"Broker {known}."
        if level < self.levels.get(name, 0) and upgrade_type == UPGRADE:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
            )
        if level > self.levels.get(name, 0) and upgrade_type != UPGRADE:
            return "A newer version needs the upgrade type upgrade."
        return None

    def set_levels(self, levels: Mapping[str, int]) -> Steps:
        """Change levels, which were checked, durably. For steps that have the features `in_turn`. Raises StorageError."""
        changed = self.levels | {name: level for name, level in levels.items() if name in SUPPORTED}
        if changed != self.levels:
            document = {"epoch": self.epoch + 1, "levels": changed}
            yield from self._cluster.later(DocumentSet(DOCUMENT, document))
            self.levels, self.epoch = changed, self.epoch + 1


def refuse_disabled(api_key: int, request: MessageBase) -> MessageBase:
    """Return the answer of an API whose feature is off: UNSUPPORTED_VERSION, for each group that was asked for."""
    error = ErrorCode.UNSUPPORTED_VERSION
    response = messages.message_class(f"{tables.api(api_key).name}Response")()
    if not isinstance(request, _DESCRIBE):
        response.error_code = error
    else:
        response.groups = [response.DescribedGroup(group_id=group_id, error_code=error) for group_id in request.group_ids]
    return cast(MessageBase, response)
