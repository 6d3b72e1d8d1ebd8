"""Stream topologies: a DSL over the log, its planner and compilers, the runtime, and a test driver."""

from .dsl import (
    App,
    Grouped,
    Stream,
    Table,
    aggregate,
    apply,
    col,
    count,
    days,
    hopping,
    hours,
    max,
    mean,
    milliseconds,
    min,
    minutes,
    record_time,
    reduce,
    seconds,
    sum,
    table,
    tumbling,
    when,
    window_end,
    window_start,
)
from .graph import Topology
from .planner import plan

__all__ = [
    "App",
    "Grouped",
    "Stream",
    "Table",
    "Topology",
    "aggregate",
    "apply",
    "col",
    "count",
    "days",
    "hopping",
    "hours",
    "max",
    "mean",
    "milliseconds",
    "min",
    "minutes",
    "plan",
    "record_time",
    "reduce",
    "seconds",
    "sum",
    "table",
    "tumbling",
    "when",
    "window_end",
    "window_start",
]


def __getattr__(name: str) -> object:
    from .dsl.missing import missing

    raise missing("logflume.streams", name, __all__)
