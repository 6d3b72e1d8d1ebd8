"""The native runtime: tasks, commits, restore, group membership, interactive reads (architecture, D5 to D7, D14)."""

from .engine import Engine
from .options import EngineOptions, Guarantee, OnGap, OnProblem
from .peers import Peers, StorePlace, StoreUnavailable, instances, statuses
from .problems import PoisonRecord, StreamsError
from .queries import StoreView
from .replay import replay
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
    "Peers",
    "PoisonRecord",
    "StorePlace",
    "StoreUnavailable",
    "StoreView",
    "StreamsError",
    "TaskStatus",
    "describe_status",
    "instances",
    "replay",
    "run_app",
    "statuses",
]
