"""Share groups (KIP-932): queue semantics over partitions, with an acknowledgement for each record."""

from .group_replay import GroupReplay
from .service import ShareService

__all__ = ["GroupReplay", "ShareService"]
