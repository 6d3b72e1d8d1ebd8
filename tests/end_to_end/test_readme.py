"""README as a newcomer follows it: its blocks in order, in an empty directory, with nothing but what it prints."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ._command import free_port, serving
from ._guide import Reader, blocks_of

ROOT = Path(__file__).resolve().parents[2]
ON_A_CLUSTER = "--master spark://master:7077 --conf spark.executor.memory=1g"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some forty processes, each of which a busy machine takes seconds to start
def test_the_blocks_of_readme_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("LOGFLUME_REGISTRY", f"http://{registry}")  # the port that README names may be another server's
    with serving(tmp_path / "data", "--registry", registry) as (address, _):
        here = {
            "127.0.0.1:9092": address,
            "broker:9092": address,
            "127.0.0.1:8081": registry,
            "--host broker.example": f"--host localhost --port {free_port()}",
            "127.0.0.1:9094": f"127.0.0.1:{free_port()}",
            "s3://bucket/archive": "archive",
            ON_A_CLUSTER: "--master local[1] --conf spark.sql.shuffle.partitions=1" if shutil.which("java") else "--engine local",
        }
        reader = Reader(tmp_path, here)
        try:
            reader.follow(blocks_of(ROOT / "README.md"))
        finally:
            reader.stop()


def test_the_commands_of_make_that_readme_names_are_there() -> None:
    named = set(re.findall(r"\bmake ([a-z]+)\b[ `\n]", (ROOT / "README.md").read_text()))
    known = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= known
