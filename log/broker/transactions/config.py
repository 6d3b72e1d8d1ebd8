"""The settings of the transaction coordinator, each under Kafka's own name in the docstring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Settings of the transaction coordinator.

    Attributes:
        max_timeout_ms: `transaction.max.timeout.ms`, the longest timeout a producer may ask for.
        has_unlimited: `transaction.two.phase.commit.enable`, whether NO_TIMEOUT_MS may be asked for.
        id_expiration_ms: `transactional.id.expiration.ms`, how long an idle id is remembered.
        expiry_check_interval_ms: `transaction.remove.expired.transaction.cleanup.interval.ms`.
        max_ids: `logflume.max.transactional.ids`, how many are remembered.
        end_wait_max_ms: how long the answer to EndTxn waits for the markers. The decision is on disk before; waiting makes the
            end of a transaction visible to everybody once its producer knows of it. Kafka does not wait. Well below the 30 s
            after which clients give a request up.
        retry_min_ms, retry_max_ms: pauses between attempts to write a marker, doubling.
    """

    max_timeout_ms: int = 900_000
    has_unlimited: bool = False
    id_expiration_ms: int = 7 * 24 * 3_600_000
    expiry_check_interval_ms: int = 3_600_000
    max_ids: int = 100_000
    end_wait_max_ms: int = 10_000
    retry_min_ms: int = 100
    retry_max_ms: int = 5_000
