"""What tests with Spark itself need: Java, and a session whose workers find this tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logflume.streams.spark.session import java_version

ROOT = Path(__file__).resolve().parents[2]
NEEDS_JAVA = pytest.mark.skipif(
    (java_version() or 0) < 17, reason="Spark needs Java 17 or newer: apt-get install openjdk-17-jre-headless"
)
SPARK_WAIT_S = 600


@contextmanager
def spark_session(name: str, master: str) -> Iterator[Any]:
    """Open a session that knows nothing of logflume yet."""
    from logflume.streams.spark import SparkSettings, open_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        session = open_session(name, SparkSettings(master))
        yield session
        session.stop()
