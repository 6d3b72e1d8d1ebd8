"""Workers killed at random moments, the broker in a process of its own: source, dead letters and both sinks stay exactly-once."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from logflume.connect import run_connectors
from logflume.log import TopicPartition, connect

ROOT = Path(__file__).parents[2]
WORKER = """
import sys
from logflume.connect import run_connectors
from logflume.log import connect
with connect(sys.argv[1]) as log:
    run_connectors(log, sys.argv[2:])
"""
ROWS, KILLS, SEED = 40_000, 8, 11
BROKEN = set(range(77, ROWS, 5000))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """A broker process; its address."""
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split(" on ")[1].split(",")[0].strip()
        process.terminate()


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    rows = (f"{i},bad\n" if i in BROKEN else f'{i},"n{i}",{i / 8}\n' for i in range(ROWS))
    (tmp_path / "a.csv").write_text("id,name,x\n" + "".join(rows))
    common = 'value.columns = "id INT, name STRING, x DOUBLE"\nerrors.tolerance = "all"\n'
    sink = f'topics = "t"\noffset.flush.interval.ms = 100\n{common}'
    texts = {
        "src": f'connector = "file-source"\nfile = "{tmp_path}/a.csv"\ntopic = "t"\n"topic.partitions" = 3\nkey.columns = "id"\n'
        f"batch.max.records = 500\nrate.records.per.second = 10000\n{common}",
        "sql": f'connector = "sql-sink"\nconnection.url = "sqlite:///{tmp_path}/a.db"\n{sink}',
        "parquet": f'connector = "parquet-sink"\npath = "{tmp_path}/out"\nrotate.records = 700\n{sink}',
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n{text}')
    return [tmp_path / f"{name}.toml" for name in texts]


@pytest.mark.slow
def test_random_kills_lose_and_double_nothing(tmp_path: Path, broker: str, configs: list[Path]) -> None:
    chance = random.Random(SEED)
    command = [sys.executable, "-c", WORKER, broker, *map(str, configs)]
    for _ in range(KILLS):
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as worker:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=chance.uniform(1.0, 3.0))
            worker.kill()
    expected = [i for i in range(ROWS) if i not in BROKEN]
    with connect(broker) as log:
        for config in configs:
            run_connectors(
                log, [config], is_once=True, overrides={"rate.records.per.second": 0} if config.stem == "src" else None
            )
        letters = TopicPartition("src.dead-letters", 0)
        end = log.admin().end_offsets([letters], read_committed=True)[letters]
        consumer = log.consumer()
        consumer.assign([letters])
        found = 0
        while consumer.position(letters) < end:
            found += sum(len(chunk) for chunk in consumer.poll(timeout_s=1.0))
        assert found == len(BROKEN)
    with sqlite3.connect(tmp_path / "a.db") as database:
        assert sorted(row[0] for row in database.execute("select id from t")) == expected
    assert sorted(ds.dataset(tmp_path / "out", format="parquet").to_table().column("id").to_pylist()) == expected
