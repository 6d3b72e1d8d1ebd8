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
        Cogrouped,
        Context,
        GlobalTable,
        Grouped,
        GroupedTable,
        Processor,
        Record,
        Stream,
        Table,
        Time,
        Topology,
        WindowedKey,
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
        table,
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
    from logflume.streams.dsl import functions
    from logflume.streams.runtime import EngineOptions
    from logflume.streams.testing import TopologyTestDriver

__version__ = "0.1.0"

__all__ = [
    "App",
    "Cogrouped",
    "Context",
    "EngineOptions",
    "GlobalTable",
    "Grouped",
    "GroupedTable",
    "Processor",
    "Record",
    "Stream",
    "Table",
    "Time",
    "Topology",
    "TopologyTestDriver",
    "WindowedKey",
    "aggregate",
    "apply",
    "calendar",
    "col",
    "connect",
    "count",
    "days",
    "functions",
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


_ELSEWHERE = {"connect": "log", "EngineOptions": "streams.runtime", "TopologyTestDriver": "streams.testing"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise _missing(name)
    if name == "functions":
        return import_module("logflume.streams.dsl.functions")
    try:
        return getattr(import_module(f"logflume.{_ELSEWHERE.get(name, 'streams')}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "logflume").startswith("logflume"):
            raise
        advice = f"logflume.{name} needs {error.name}: pip install 'logflume[streams]'"
        raise ModuleNotFoundError(advice, name=error.name) from None


def _missing(name: str) -> AttributeError:
    """Return the error for a name that is not here, with near matches."""
    if name.startswith("_") or name in ("cli", "log", "sql", "streams"):  # a part that is about to be imported
        return AttributeError(f"module 'logflume' has no attribute {name!r}")
    missing = import_module("logflume.streams.missing").missing
    error: AttributeError = missing("logflume", name, __all__)
    return error


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook `%%sql`: what `%load_ext logflume` calls."""
    import_module("logflume.cli.sql_magic").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take it back: what `%unload_ext logflume` calls."""
    import_module("logflume.cli.sql_magic").unload(shell)


def __dir__() -> list[str]:
    return __all__
