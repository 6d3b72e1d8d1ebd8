"""Groups of every protocol: membership, assignments and committed offsets, kept in `__consumer_offsets`."""

from .config import GroupConfig
from .coordinator import GroupCoordinator
from .handlers import handlers
from .ports import GroupSettings, InternalTopics, NewTopic, Topics, TxnAdmission

__all__ = [
    "GroupConfig",
    "GroupCoordinator",
    "GroupSettings",
    "InternalTopics",
    "NewTopic",
    "Topics",
    "TxnAdmission",
    "handlers",
]
