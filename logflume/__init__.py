"""logflume: an event log that speaks Kafka's protocol, stream topologies in Python, SQL, connectors and Spark backfills.

The names of `logflume.streams` are here too (`lf.App`, `lf.col`, `lf.tumbling`...), imported when first used, so that the
command line and `import logflume.log` stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logflume.log import connect
    from logflume.streams import (
        App,
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
    from logflume.streams.dsl import functions

__version__ = "0.1.0"

__all__ = [
    "App",
    "aggregate",
    "apply",
    "col",
    "connect",
    "count",
    "days",
    "functions",
    "hopping",
    "hours",
    "max",
    "mean",
    "milliseconds",
    "min",
    "minutes",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'logflume' has no attribute {name!r}")
    if name == "functions":
        return import_module("logflume.streams.dsl.functions")
    return getattr(import_module("logflume.log" if name == "connect" else "logflume.streams"), name)
