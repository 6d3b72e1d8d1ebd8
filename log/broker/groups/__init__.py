"""Groups of every protocol: membership, assignments and committed offsets, kept in `__consumer_offsets`."""

from .config import GroupConfig
from .coordinator import GroupCoordinator
from .handlers import handlers

__all__ = [
    "GroupConfig",
    "GroupCoordinator",
    "handlers",
]
