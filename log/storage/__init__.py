"""Storage: segments with indexes, producer state, group-commit durability, the data directory."""

from .checking import CheckBudget
from .cleaner import Cleaned, Cleaner
from .compaction import CompactionPlan, CompactionResult, run_compaction
from .config import LogConfig
from .datadir import DataDir, Holder
from .disk import Disk, OsDisk
from .errors import AppendRefused, DiskFull, OffsetOutOfRange, PartitionFailed
from .flush import FlushScheduler
from .opening import open_log
from .partition import PartitionLog
from .scrub import Scrubber
from .slices import AbortedTransaction, AppendInfo, LogSlice, RecoveryReport, TimeOffset
from .verify import Damage, verify_log

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "AppendRefused",
    "CheckBudget",
    "Cleaned",
    "Cleaner",
    "CompactionPlan",
    "CompactionResult",
    "Damage",
    "DataDir",
    "Disk",
    "DiskFull",
    "FlushScheduler",
    "Holder",
    "LogConfig",
    "LogSlice",
    "OffsetOutOfRange",
    "OsDisk",
    "PartitionFailed",
    "PartitionLog",
    "open_log",
    "RecoveryReport",
    "Scrubber",
    "run_compaction",
    "verify_log",
    "TimeOffset",
]
