"""Where quotas are kept: a document of the cluster's metadata, one entry per entity."""

from __future__ import annotations

from typing import Any

from logflume.log.broker.ports import Clock
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.state.cluster import ClusterState
from logflume.log.broker.state.metadata import DocumentSet
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError

from .entities import QuotaTable
from .limiter import Quotas

DOCUMENT = "client_quotas"
AT_A_TIME = 1_000
"""Entities in one slice of the loop's time."""


def load_quotas(cluster: ClusterState) -> QuotaTable:
    """Return the quotas kept with the cluster's metadata. Raises StorageError."""
    try:
        entries = [
            (frozenset(entry["entity"].items()), {key: float(value) for key, value in entry["quotas"].items()})
            for entry in cluster.document(DOCUMENT) or ()
        ]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(f"the quotas in cluster.json cannot be read ({error!r}); restore the file from a backup") from error
    return QuotaTable(dict(entries))


def store_quotas(cluster: ClusterState, table: QuotaTable) -> Steps:
    """Keep these quotas, durably. For steps that have the quotas `in_turn`. Raises StorageError."""
    content: list[dict[str, Any]] = []
    for entity, quotas in table.entries.items():
        content.append({"entity": dict(sorted(entity)), "quotas": dict(quotas)})
        if len(content) % AT_A_TIME == 0:
            yield None
    yield from cluster.later(DocumentSet(DOCUMENT, content))


def make_quotas(config: BrokerConfig, cluster: ClusterState, clock: Clock) -> Quotas:
    """Return the quotas of a broker. Raises StorageError."""
    return Quotas(
        load_quotas(cluster),
        clock,
        samples=config.number("quota.window.num"),
        window_ms=config.number("quota.window.size.seconds") * 1000,
        mutation_samples=config.number("controller.quota.window.num"),
        mutation_window_ms=config.number("controller.quota.window.size.seconds") * 1000,
    )
