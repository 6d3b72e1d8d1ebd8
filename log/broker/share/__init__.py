"""Share groups (KIP-932): queue semantics over partitions, with an acknowledgement for each record."""

from .service import ShareService

__all__ = ["ShareService"]
