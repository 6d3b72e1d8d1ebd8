"""What tests of SQL share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import Log, connect


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        yield opened
