"""Fixtures of the log's tests: one broker process for all foreign clients, and topic names that nobody else uses."""

import uuid
from collections.abc import Iterator

import pytest

from ._server_process import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker process that lives as long as the test session; tests use topics of their own."""
    process = ServerProcess(str(tmp_path_factory.mktemp("broker")))
    yield process
    assert process.stop() == 0


@pytest.fixture
def topic() -> str:
    """A name for a topic of one test."""
    return f"topic-{uuid.uuid4().hex[:12]}"
