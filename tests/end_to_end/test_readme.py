"""README as a newcomer follows it: its blocks in order, in an empty directory, with nothing but what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ._command import free_port, serving
from ._guide import Reader, blocks_of

ROOT = Path(__file__).resolve().parents[2]
ON_A_CLUSTER = "--master spark://master:7077 --conf spark.executor.memory=1g"
"""`tests/streams/test_spark_cluster.py` has one."""
PICTURE = ROOT / "docs" / "pictures" / "delays-of-readme.svg"


@pytest.mark.slow
@pytest.mark.timeout(400)  # processes that a busy machine takes seconds to start
def test_the_blocks_of_readme_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("LOGFLUME_REGISTRY", f"http://{registry}")  # the port that README names may be another server's
    with serving(tmp_path / "data", "--registry", registry) as (address, _):
        reader = Reader(tmp_path, {"127.0.0.1:9092": address, "broker:9092": address, ON_A_CLUSTER: "--engine local"})
        try:
            reader.follow(blocks_of(ROOT / "README.md"))
        finally:
            reader.stop()


def test_the_commands_of_make_that_readme_names_are_there() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)\b[ `\n]", (ROOT / "README.md").read_text()))
    known = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= known


def test_the_picture_in_readme_is_of_its_topology() -> None:
    (program,) = (block.text for block in blocks_of(ROOT / "README.md") if block.title == "app.py")
    scope: dict[str, Any] = {"__name__": "app"}
    exec(program, scope)
    assert f"({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    assert PICTURE.read_text() == scope["app"].topology().describe().svg() + "\n"


def test_every_promise_names_the_files_of_its_tests() -> None:
    promises = (ROOT / "README.md").read_text().partition("## What you can rely on")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py`|ARCHITECTURE\.md#", row)] == []
