"""An engine in this process, as long as somebody uses it: for the shell, for scripts and for migrations on a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logflume.log import connect_as_owner
from logflume.streams.functions import Library

from .connectors import ConnectorsOf
from .engine import DEFAULT_SERVICE, SqlEngine
from .places import Role, default_state_dir
from .pull_service import PullService
from .workers import has_worker

GIVE_WAY_EVERY_S = 0.5


@contextmanager
def open_engine(
    where: str, *, state_dir: Path | None = None, connectors: ConnectorsOf | None = None, functions: Library | None = None
) -> Iterator[SqlEngine]:
    """Open the log and an engine on it; close both at the end.

    While no worker runs the service's queries they run here, and other processes are answered for them; a worker that comes gets
    them.
    """
    with connect_as_owner(where) as log:
        runs_queries = not has_worker(log, DEFAULT_SERVICE)
        folder = state_dir or default_state_dir(where)
        with SqlEngine(log, folder, runs_queries=runs_queries, connectors=connectors, library=functions) as engine:
            if not runs_queries:
                yield engine
                return
            with PullService(engine, log, role=Role.GUEST), _giving_way(engine):
                yield engine


@contextmanager
def _giving_way(engine: SqlEngine) -> Iterator[None]:
    """Look for a worker again and again, until one has come or the block ends."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(GIVE_WAY_EVERY_S) and not engine.give_way():
            pass

    thread = threading.Thread(target=look, name="give-way", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)
