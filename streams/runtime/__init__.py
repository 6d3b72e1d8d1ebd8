"""The native runtime: tasks, commits, restore, group membership, interactive reads (architecture, D5 to D7, D14)."""

from .engine import Engine
from .options import EngineOptions, Guarantee, OnGap, OnProblem
from .problems import PoisonRecord, StreamsError
from .queries import StoreView
from .run import describe_status, run_app
from .status import CommitStatus, EngineState, EngineStatus, InputStatus, TaskStatus

__all__ = [
    "CommitStatus",
    "Engine",
    "EngineOptions",
    "EngineState",
    "EngineStatus",
    "Guarantee",
    "InputStatus",
    "OnGap",
    "OnProblem",
    "PoisonRecord",
    "StoreView",
    "StreamsError",
    "TaskStatus",
    "describe_status",
    "run_app",
]
