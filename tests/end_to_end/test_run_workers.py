"""`logflume run --workers`, `logflume streams` and `App.query` against real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from logflume.log import connect
from logflume.streams.runtime.positions import addresses
from tests.streams.running import read, until, write

from ._command import LOGFLUME, run, serving

APP = """
import logflume.streams as lf
from logflume.streams import count

app = lf.App("words", commit_interval_ms=20, dead_letter_topic="words-dead")
app.stream("lines", int, key=str).group_by_key().aggregate(n=count(), name="counts").to("out")

if __name__ == "__main__":
    app.run()
"""
USERS = [f"user{i}" for i in range(20)]


def feed(address: str, value: bytes) -> None:
    with connect(address) as log:
        write(log, "lines", [(user.encode(), value, 1) for user in USERS])


@pytest.mark.slow
def test_workers_share_the_work_survive_a_kill_and_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(APP)
    with serving(tmp_path / "data") as (address, _):
        run("topic", "create", "lines", "--partitions", "4", "--bootstrap", address)
        feed(address, b"1")
        argv = [*LOGFLUME, "run", str(file), "--workers", "2", "--bootstrap", address, "--state-dir", str(tmp_path / "state")]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        try:
            with connect(address) as log:
                until(lambda: len(read(log, "out")) >= len(USERS))
                statuses = until(lambda: found if len(found := looks(address)) == 2 else None)
                assert sum(status["records_in"] for status in statuses) == len(USERS)
                assert sorted(len(status["tasks"]) for status in statuses) == [2, 2]
                workers = [child for child in psutil.Process(process.pid).children() if child.is_running()]
                assert len(workers) == 2
                os.kill(workers[0].pid, signal.SIGKILL)
                feed(address, b"2")
                last = until(lambda: counts if set((counts := latest(log)).values()) == {2} else None)
                assert last == dict.fromkeys(USERS, 2)
                asked = "import words, json; q = words.app.query('counts'); print(json.dumps({r.key: r.value for r in q.rows()}))"
                env = os.environ | {"LOGFLUME_BOOTSTRAP": address, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
                rows = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, check=True).stdout
                assert json.loads(rows) == {user: {"n": 2} for user in USERS}
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        assert process.returncode == 0
        assert "answers" in run("streams", "top", "words", "--once", "--bootstrap", address, code=1).stderr


@pytest.mark.slow
def test_a_look_at_an_application_whose_only_instance_died_names_what_it_ran_and_where(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(APP.replace("app.run()", 'app.run(endpoint="127.0.0.1:0")'))
    with serving(tmp_path / "data") as (address, _):
        run("topic", "create", "lines", "--partitions", "2", "--bootstrap", address)
        feed(address, b"1")
        environment = os.environ | {"LOGFLUME_BOOTSTRAP": address, "PYTHONPATH": str(Path.cwd())}
        process = subprocess.Popen([sys.executable, str(file)], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            with connect(address) as log:
                until(lambda: len(addresses(log.admin().group_offsets("words"))) == 2)
                (lived_at,) = set(addresses(log.admin().group_offsets("words")).values())
        finally:
            process.kill()
            process.wait(60)
        told = run("streams", "top", "words", "--once", "--bootstrap", address, code=1).stderr
        assert "no instance of 'words' answers" in told
        assert f"lines-0, lines-1 were last run at {lived_at}" in told


def looks(address: str) -> list[dict[str, object]]:
    argv = [*LOGFLUME, "streams", "top", "words", "--json", "--once", "--bootstrap", address]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def latest(log: object) -> dict[str, int]:
    return {(r.key or b"").decode(): msgspec.json.decode(r.value or b"")["n"] for r in read(log, "out")}  # type: ignore[arg-type]
