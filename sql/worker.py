"""Runs the persistent queries of a log in a process of its own, following what shells and servers create and terminate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from logflume.log import LogflumeError, connect_as_owner
from logflume.streams.functions import Library

from .connectors import ConnectorsOf
from .engine import SqlEngine
from .places import default_state_dir
from .pull_service import PullService

_log = logging.getLogger("logflume.sql")
FOLLOW_EVERY_S = 0.1


def run_worker(
    where: str,
    stopping: Callable[[], threading.Event],
    *,
    state_dir: Path | None = None,
    connectors: ConnectorsOf | None = None,
    functions: Library | None = None,
) -> None:
    """Run until a signal, answering pull queries of other processes. New commands are taken in within `FOLLOW_EVERY_S`.

    `stopping` is called once it runs, and gives what signals set from then on. One that comes before has its usual effect: who
    starts may wait long for a broker, and has nothing to lose.

    Raises:
        LogflumeError: the log cannot be opened, or the commands cannot be read at the start.
    """
    with (
        connect_as_owner(where) as log,
        SqlEngine(log, state_dir or default_state_dir(where), connectors=connectors, library=functions) as engine,
        PullService(engine, log),
    ):
        engine.is_followed = True
        stop = stopping()
        while not stop.wait(FOLLOW_EVERY_S):
            try:
                engine.following.follow()
            except LogflumeError as e:
                _log.warning("commands cannot be read: %s; trying again", e)
