"""Runs connector files from a command line: `run_connectors` is what `logflume connect run FILE...` calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from logflume.log import Log

from .load import load_connector
from .status import ConnectorStatus
from .worker import Worker

Report = Callable[[Sequence[ConnectorStatus]], None]


def run_connectors(
    log: Log,
    sources: Sequence[str | Path | Mapping[str, object]],
    *,
    overrides: Mapping[str, object] | None = None,
    is_once: bool = False,
    report: Report | None = None,
    report_interval_s: float = 1.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ConnectorStatus]:
    """Check all connectors (files, or their keys), run them until all have ended or `should_stop` says so; return their status.

    With `is_once` sinks complete at the end their topics have now, and a failure that lasts through five restarts is final.
    Bounded sources complete at the end of their files either way. `report` gets the status every interval and once at the
    end.

    `overrides` replace keys of each.

    Raises:
        ConfigErrors: one is wrong; nothing was started.
        LogflumeError: the first error that made a task fail for good, after everything has stopped.
    """
    connectors = [load_connector(source, overrides=overrides) for source in sources]
    worker = Worker(log, connectors, is_once=is_once, max_restarts=5 if is_once else None)
    try:
        worker.start()
        next_report_s = time.monotonic() + report_interval_s
        while not worker.wait(timeout_s=0.1) and not should_stop():
            if report is not None and time.monotonic() >= next_report_s:
                report(worker.status())
                next_report_s = time.monotonic() + report_interval_s
    finally:
        worker.stop()
    statuses = worker.status()
    if report is not None:
        report(statuses)
    for error in worker.errors():
        raise error
    return statuses


def run_connector(log: Log, path: str | Path, *, is_once: bool = False, report: Report | None = None) -> ConnectorStatus:
    """Run one connector file; see `run_connectors`."""
    return run_connectors(log, [path], is_once=is_once, report=report)[0]
