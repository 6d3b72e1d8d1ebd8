"""Share groups (KIP-932): their members and which partitions they share; what they have of records is in `log.broker.share`."""

from .group import ShareGroup
from .groups import ShareGroups, ShareHeartbeat

__all__ = ["ShareGroup", "ShareGroups", "ShareHeartbeat"]
