"""Puts the coordinators of groups and transactions over the broker's journals."""

from __future__ import annotations

from collections.abc import Mapping

from .cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from .core import Core
from .journal import DataPartitions, TopicJournal
from .seams import Handler, TxnVerifier


class Coordinators:
    """The coordinators of one broker. They read their journals when they are made."""

    def __init__(self, core: Core) -> None:
        self.offsets = TopicJournal(core, OFFSETS_TOPIC, partition_count=core.config.number("offsets.topic.num.partitions"))
        self.transactions = TopicJournal(
            core, TRANSACTIONS_TOPIC, partition_count=core.config.number("transaction.state.log.num.partitions")
        )
        self.partitions = DataPartitions(core)
        self.verifier: TxnVerifier | None = None

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API name."""
        return {}

    def close(self) -> None:
        """Stop what runs by timers."""
