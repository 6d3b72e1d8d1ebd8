"""The DSL: applications, streams, tables, and the expressions and aggregates that go into them."""

from .aggregates import aggregate, count, max, mean, min, reduce, sum
from .app import App
from .fields import apply, col, record_time, table, when, window_end, window_start
from .stream import Stream
from .table import Grouped, Table
from .windows import days, hopping, hours, milliseconds, minutes, seconds, tumbling

__all__ = [
    "App",
    "Grouped",
    "Stream",
    "Table",
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
