"""Stream topologies: a DSL over the log, its planner, operators and runtime, and a test driver.

Names are loaded when first used, so that what needs no engine (times, texts, the graph) costs nothing and needs no numpy.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dsl import (
        App,
        Cogrouped,
        GlobalTable,
        Grouped,
        GroupedTable,
        Stream,
        Table,
        aggregate,
        apply,
        calendar,
        col,
        count,
        days,
        hopping,
        hours,
        key_value_store,
        max,
        mean,
        milliseconds,
        min,
        minutes,
        record_time,
        reduce,
        seconds,
        session,
        session_store,
        sliding,
        sum,
        top_n,
        tumbling,
        unlimited,
        until_time_limit,
        until_window_closes,
        versioned_store,
        when,
        window_end,
        window_start,
        window_store,
    )
    from .dsl.fields import table  # beside `dsl`'s names is a module of this one
    from .graph import Topology
    from .planner import plan
    from .processors import Context, Processor, Record, Time
    from .rows import WindowedKey

_OUTSIDE_DSL = {
    "Topology": "graph",
    "WindowedKey": "rows",
    "plan": "planner",
    **dict.fromkeys(("Context", "Processor", "Record", "Time"), "processors"),
}

__all__ = [
    "App",
    "Cogrouped",
    "Context",
    "GlobalTable",
    "Grouped",
    "GroupedTable",
    "Processor",
    "Record",
    "Stream",
    "Table",
    "Time",
    "Topology",
    "WindowedKey",
    "aggregate",
    "apply",
    "calendar",
    "col",
    "count",
    "days",
    "hopping",
    "hours",
    "key_value_store",
    "max",
    "mean",
    "milliseconds",
    "min",
    "minutes",
    "plan",
    "record_time",
    "reduce",
    "seconds",
    "session",
    "session_store",
    "sliding",
    "sum",
    "table",
    "top_n",
    "tumbling",
    "unlimited",
    "until_time_limit",
    "until_window_closes",
    "versioned_store",
    "when",
    "window_end",
    "window_start",
    "window_store",
]


def __getattr__(name: str) -> Any:
    from .missing import missing, suggesting

    if name in __all__:
        found = getattr(import_module(f".{_OUTSIDE_DSL.get(name, 'dsl')}", __name__), name)
        return suggesting(found) if isfunction(found) else found
    raise missing("logflume.streams", name, __all__)
