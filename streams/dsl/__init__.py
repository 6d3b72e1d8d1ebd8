"""The DSL: applications, streams, tables, and the expressions and aggregates that go into them."""

from .aggregates import aggregate, count, max, mean, min, reduce, sum, top_n
from .app import App
from .cogroups import Cogrouped
from .fields import apply, col, record_time, table, when, window_end, window_start
from .grouped_table import GroupedTable
from .processing import key_value_store, session_store, versioned_store, window_store
from .stream import Stream
from .suppress import until_time_limit, until_window_closes
from .table import GlobalTable, Grouped, Table
from .windows import calendar, days, hopping, hours, milliseconds, minutes, seconds, session, sliding, tumbling, unlimited

__all__ = [
    "App",
    "Cogrouped",
    "GlobalTable",
    "Grouped",
    "GroupedTable",
    "Stream",
    "Table",
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
