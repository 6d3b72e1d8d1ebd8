"""State stores: memory first, one RocksDB per task behind, committed in one atomic step (architecture, D6)."""

from .checkpoint import Checkpoint
from .codec import EntryCodec
from .directory import StateDirectory
from .dirty import Dirty, DirtyEntries
from .disk import StateDamaged, StoreChanged
from .gathering import Gathered, gather
from .memory import DiskMemory
from .reader import StoreReader
from .store import Store
from .task_state import TaskState
from .windows import SegmentLayout, window_start

__all__ = [
    "Checkpoint",
    "Dirty",
    "DirtyEntries",
    "DiskMemory",
    "EntryCodec",
    "Gathered",
    "SegmentLayout",
    "StateDamaged",
    "StateDirectory",
    "Store",
    "StoreChanged",
    "StoreReader",
    "TaskState",
    "gather",
    "window_start",
]
