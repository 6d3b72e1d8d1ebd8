"""What a start loads: an application that puts out its first record has not waited for what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from logflume.cli import COMMANDS
from logflume.log import connect

from ._command import run_cold, serving

NEVER_NEEDED = (
    "datasketches", "email.mime", "hypercorn", "jsonschema", "llvmlite", "numba", "numpy.ma", "numpy.random", "numpy.testing",
    "pandas", "polars", "prompt_toolkit", "pyarrow", "pydantic", "pyspark", "rich", "sqlalchemy", "starlette", "uvicorn",
)  # fmt: skip
APP = """
import sys
import msgspec
import logflume as lf
from logflume import col
from logflume.log import connect
from logflume.log.records import TopicPartition
from logflume.streams.runtime import EngineOptions, run_app

class Flight(msgspec.Struct):
    carrier: str
    delay: float | None

class Airline(msgspec.Struct):
    carrier: str
    name: str

app = lf.App("delays")
flights, airlines = app.stream("flights", Flight), app.table("airlines", Airline)
flights.filter(col.delay > 15).join(airlines, on=col.carrier).group_by(col.name).window(
    lf.tumbling(hours=1, grace=lf.minutes(10))
).aggregate(flights=lf.count(), mean_delay=lf.mean(col.delay)).to("delays")
delays = [TopicPartition("delays", 0), TopicPartition("delays", 1)]
loaded = None

def until(status):
    global loaded
    if status.commit.commits and sum(log.admin().end_offsets(delays).values()):
        loaded = list(sys.modules)
    return loaded is not None

with connect(app.log) as log:
    run_app(app.plan(), log, EngineOptions(state_dir=app.state_dir), on_status=lambda status: None, until=until)
print(*loaded)
raise SystemExit  # it runs by itself, as it has to stop
"""


def test_an_application_loads_nothing_heavy_before_its_first_output(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path / "log", "--workers", "0") as (address, _):
        with connect(address) as log:
            for topic in ("flights", "airlines"):
                log.admin().ensure_topic(topic, partitions=2)
            producer = log.producer()
            producer.send("airlines", b'{"carrier": "A", "name": "Alpha"}', key=b"A").result(60)
            producer.send("flights", b'{"carrier": "A", "delay": 20.5}', key=b"A").result(60)
        state = str(tmp_path / "state")
        loaded = run_cold("run", str(tmp_path / "app.py"), "--state-dir", state, "--bootstrap", address).stdout.split()
    assert [name for name in NEVER_NEEDED if name in loaded] == []
    assert len([name for name in loaded if not name.startswith("logflume")]) < 400


def test_the_overview_loads_the_standard_library_only() -> None:
    program = "import sys; from logflume.cli import main; sys.argv = ['logflume', '--help']; main(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert {name for name in loaded if name.startswith("logflume")} <= {"logflume", "logflume.cli", "logflume.cli.common"}
    assert not {"typer", "asyncio", "numpy", "msgspec"} & loaded


LOADED_BY_EACH = """
import json, os, sys
from logflume.cli import COMMANDS, main

for command in COMMANDS:
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main([command, "--help"])
        os.write(2, (json.dumps([command, list(sys.modules)]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


def test_no_command_loads_what_its_help_does_not_need() -> None:
    """Modules stand for the time of the import: 0.25 s are some 350 of them, and each of the heavy ones alone costs as much.

    `python -m benchmarks.command_line` measures it.
    """
    ran = subprocess.run([sys.executable, "-c", LOADED_BY_EACH], capture_output=True, text=True, timeout=300, check=True)
    loaded = {command: set(modules) for command, modules in map(json.loads, ran.stderr.splitlines())}
    assert set(loaded) == set(COMMANDS)
    heavy = {*NEVER_NEEDED, "cryptography", "fastavro", "google", "grpc_tools", "httpx", "lark", "numpy", "rocksdict"}
    for command, modules in loaded.items():
        assert not heavy & modules, command
        assert "logflume.log.server.shell" not in modules, command
        assert not {name for name in modules if name.startswith("logflume.log.storage")}, command
        assert len(modules) < 280, command


def test_what_asks_a_broker_loads_no_arrays(tmp_path: Path) -> None:
    """Of the commands that only ask and tell, none loads what reads columns."""
    program = "import sys; from logflume.cli import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    with serving(tmp_path / "log", "--workers", "0") as (address, _):
        for command in ("topic create words", "topic list", "topic describe words", "group list", "config show --topic words"):
            argv = [sys.executable, "-c", program, *command.split(), "--bootstrap", address]
            ran = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
            assert not {*NEVER_NEEDED, "numpy", "cryptography"} & set(ran.stdout.splitlines()[-1].split()), command
