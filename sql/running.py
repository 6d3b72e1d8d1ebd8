"""Persistent queries while they run: one streams engine each, started, looked into, stopped, and cleaned up after."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from logflume.log import InvalidInput, LogflumeError
from logflume.log.interfaces import Log
from logflume.streams import plan
from logflume.streams.graph import Topology
from logflume.streams.runtime import Engine, EngineOptions, EngineStatus
from logflume.streams.seams import Plan

from .errors import NotSupported, StatementError


def application_id(service: str, query_id: str) -> str:
    """Return the name of a query's application: its group, and the prefix of its internal topics."""
    return f"{service}-{re.sub(r'[^A-Za-z0-9._-]', '_', query_id)}"


def compile_topology(topology: Topology, application: str) -> Plan:
    """Compile a query.

    Raises:
        NotSupported: the streams engine has no way yet to run it.
    """
    try:
        return plan(replace(topology, name=application))
    except StatementError:
        raise
    except InvalidInput as e:
        raise NotSupported(f"this query ({e})") from e


class RunningQueries:
    """The engines by query id. Not thread-safe: used under the lock of its owner, except `status` and `engine`."""

    def __init__(self, log: Log, options: EngineOptions, service: str) -> None:
        self._log, self._options, self._service = log, options, service
        self._engines: dict[str, Engine] = {}

    def start(self, query_id: str, compiled: Plan) -> None:
        """Start a query. Raises what the engine refuses: missing topics, state that another process holds."""
        engine = Engine(compiled, self._log, self._options)
        engine.start()
        self._engines[query_id] = engine

    def engine(self, query_id: str) -> Engine | None:
        return self._engines.get(query_id)

    def status(self) -> Mapping[str, EngineStatus]:
        """Return what each query is doing."""
        return {query_id: engine.status() for query_id, engine in list(self._engines.items())}

    def stop(self, query_id: str, *, forget: bool) -> None:
        """Stop a query; `forget`: remove its state, group and internal topics too."""
        engine = self._engines.pop(query_id, None)
        if engine is not None:
            with contextlib.suppress(LogflumeError):
                engine.stop()
        if forget:
            forget_application(self._log, self._options.state_dir, application_id(self._service, query_id))

    def close(self) -> None:
        """Stop all; they go on at the next start."""
        for query_id in list(self._engines):
            self.stop(query_id, forget=False)


def forget_application(log: Log, state_dir: Path, application: str) -> None:
    """Remove what an application that no longer runs left: internal topics, consumer group, local state."""
    admin = log.admin()
    for topic in admin.list_topics(include_internal=True):
        if topic.startswith(f"{application}-") and topic.endswith(("-changelog", "-repartition")):
            with contextlib.suppress(LogflumeError):
                admin.delete_topic(topic)
    with contextlib.suppress(LogflumeError):
        admin.delete_group(application)
    shutil.rmtree(state_dir / application, ignore_errors=True)
