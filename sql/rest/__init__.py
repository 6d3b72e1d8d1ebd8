"""The SQL server: ksqlDB's REST interface over an engine, by HTTP/1.1, HTTP/2 and WebSocket."""

from .server import DEFAULT_LISTEN, SqlServer, run_server

__all__ = ["DEFAULT_LISTEN", "SqlServer", "run_server"]
