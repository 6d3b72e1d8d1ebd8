"""Share groups (KIP-932): queue semantics over partitions, with an acknowledgement for each record."""

from .partitions import SharePartitions
from .service import ShareService

__all__ = ["SharePartitions", "ShareService"]
