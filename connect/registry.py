"""Finds connector plug-ins by short name: the built-in table, then Python entry points of the group `logflume.connectors`.

A config never names a class or an import path, so a config cannot make a worker load code that was not installed on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from logflume.log import InvalidInput, UnknownName

from .api import Connector, SinkConnector, SourceConnector

GROUP = "logflume.connectors"
_BUILT_IN: dict[str, tuple[str, str]] = {
    "file-source": ("logflume.connect.connectors.file_source", "FILE_SOURCE"),
    "parquet-sink": ("logflume.connect.connectors.parquet_sink", "PARQUET_SINK"),
    "sql-sink": ("logflume.connect.connectors.sql_sink", "SQL_SINK"),
}


def connector_names() -> list[str]:
    """Return the short names of all plug-ins that are installed, sorted."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def find_connector(name: str) -> Connector:
    """Return the plug-in of that name.

    Raises:
        UnknownName: no such plug-in; lists near matches.
        InvalidInput: the plug-in's package could not be imported, or its entry point is no connector.
    """
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        return _load(name, lambda: getattr(import_module(module), attribute))
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _load(name, point.load)
    raise UnknownName("connector", name, connector_names())


def _load(name: str, load: Callable[[], object]) -> Connector:
    try:
        found = load()
    except ImportError as error:
        raise InvalidInput(
            f"connector {name!r} needs a package that is not installed: {error}; try: pip install 'logflume[connect]'"
        ) from error
    if not isinstance(found, SourceConnector | SinkConnector):
        raise InvalidInput(
            f"entry point {name!r} of {GROUP} is a {type(found).__name__}, expected a SourceConnector or SinkConnector"
        )
    return found
