"""What tests of SQL share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from logflume.log import Log, connect
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        yield opened


@contextmanager
def served(folder: Path, setup: str) -> Iterator[SqlServer]:
    """A SQL server over a log of its own, after some statements."""
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as engine, SqlServer(engine) as server:
        list(engine.execute(setup))
        yield server


@pytest.fixture
def client(server: SqlServer) -> Iterator[httpx.Client]:
    """A client of the `server` that a module has."""
    with httpx.Client(base_url=server.address, timeout=120) as opened:
        yield opened
