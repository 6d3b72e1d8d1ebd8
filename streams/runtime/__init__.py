"""The native runtime: tasks, commits, restore, group membership, interactive reads (architecture, D5 to D7, D14)."""

from .engine import Engine
from .forgetting import forget_application, internal_topics, members_of, reset_application
from .handlers import Handlers, OnProblem, OnUncaught, Problem, StreamsError
from .looks import Statuses, looks, node_rates, rows_by_node, silent
from .options import EngineOptions, Guarantee, OnGap
from .peers import Peers, StorePlace, StoreUnavailable, instances, statuses
from .pipe import Pipe, is_pipe
from .problems import PoisonRecord
from .queries import StoreView
from .replay import replay
from .run import describe_status, run_app
from .status import CommitStatus, EngineState, EngineStatus, InputStatus, LeftOut, TaskStatus, added_up
from .topic_look import TopicLook
from .topics import TopicMap, create_results, ensure_dead_letter_topic, prepare_topics
from .watch import Watches

__all__ = [
    "CommitStatus",
    "Engine",
    "EngineOptions",
    "EngineState",
    "EngineStatus",
    "Guarantee",
    "Handlers",
    "InputStatus",
    "LeftOut",
    "OnGap",
    "OnProblem",
    "OnUncaught",
    "Peers",
    "Pipe",
    "PoisonRecord",
    "Problem",
    "Statuses",
    "StorePlace",
    "StoreUnavailable",
    "StoreView",
    "StreamsError",
    "TaskStatus",
    "TopicLook",
    "TopicMap",
    "Watches",
    "added_up",
    "create_results",
    "describe_status",
    "ensure_dead_letter_topic",
    "forget_application",
    "instances",
    "internal_topics",
    "members_of",
    "is_pipe",
    "looks",
    "node_rates",
    "prepare_topics",
    "replay",
    "reset_application",
    "rows_by_node",
    "silent",
    "run_app",
    "statuses",
]
