"""The SQL dialect over topics: grammar, analysis, planning, functions, engine, shell (ksqlDB's dialect).

Names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalog import Catalog, ConnectorInfo, QueryInfo, SourceInfo
    from .client import SqlClient
    from .command_log import command_topic
    from .connectors import ConnectorState, ConnectorTask
    from .engine import SqlEngine
    from .errors import NotSupported, QueryFailed, SqlError, StatementError, SyntaxFault
    from .function_files import load_functions
    from .planner import plan_query
    from .preparing import PreparedQuery
    from .python_functions import aggregate, scalar, table
    from .results import Message, PushQuery, PushRow, Result, Rows
    from .session import Session

_LAZY = {
    **dict.fromkeys(("Catalog", "ConnectorInfo", "QueryInfo", "SourceInfo"), "catalog"),
    **dict.fromkeys(("ConnectorState", "ConnectorTask"), "connectors"),
    "command_topic": "command_log",
    "SqlEngine": "engine",
    "load_functions": "function_files",
    "PreparedQuery": "preparing",
    **dict.fromkeys(("aggregate", "scalar", "table"), "python_functions"),
    "Session": "session",
    "SqlClient": "client",
    **dict.fromkeys(("NotSupported", "QueryFailed", "SqlError", "StatementError", "SyntaxFault"), "errors"),
    "plan_query": "planner",
    **dict.fromkeys(("Message", "PushQuery", "PushRow", "Result", "Rows"), "results"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


__all__ = [
    "Catalog",
    "ConnectorInfo",
    "ConnectorState",
    "ConnectorTask",
    "Message",
    "NotSupported",
    "PreparedQuery",
    "PushQuery",
    "PushRow",
    "QueryFailed",
    "QueryInfo",
    "Result",
    "Rows",
    "Session",
    "SourceInfo",
    "SqlClient",
    "SqlEngine",
    "SqlError",
    "StatementError",
    "SyntaxFault",
    "aggregate",
    "command_topic",
    "load_functions",
    "plan_query",
    "scalar",
    "table",
]
