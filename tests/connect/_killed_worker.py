"""Runs one connector on an embedded log and kills itself (SIGKILL) at a call: `DATA CONFIG [Class.method:before|after:N]`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from logflume.connect import run_connectors
from logflume.log import connect

_MODULES = {
    "Producer": "logflume.log.client.producer",
    "Consumer": "logflume.log.client.consumer",
    "SqlTarget": "logflume.connect.connectors.sql_sink",
    "ParquetTarget": "logflume.connect.connectors.parquet_sink",
    "_OpenFile": "logflume.connect.connectors.parquet_sink",
}


def arm(point: str) -> None:
    """Replace the method by one that kills the process at its N-th call."""
    place, when, count = point.split(":")
    class_name, method = place.split(".")
    owner: Any = getattr(importlib.import_module(_MODULES[class_name]), class_name)
    original = getattr(owner, method)
    calls = 0

    def killing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(count) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **options)
        if calls == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, killing)


def main() -> None:
    data, config, *points = sys.argv[1:]
    for point in points:
        arm(point)
    with connect(data) as log:
        run_connectors(log, [config], is_once=True)


if __name__ == "__main__":
    main()
