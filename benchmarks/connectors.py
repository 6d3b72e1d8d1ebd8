"""Connectors: rows per second of the file source into a durable log, and of the sinks out of it. 20 columns a row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks._report import Figure, main
from logflume.connect import Idle, SourceConnector, SourceContext, load_connector, run_connectors
from logflume.log import Log, connect

ROWS = 300_000
BUDGET_ROWS_PER_S = 100_000
COLUMNS = ", ".join([*(f"i{n} INT" for n in range(8)), *(f"d{n} DOUBLE" for n in range(6)), *(f"s{n} STRING" for n in range(6))])


def table() -> pa.Table:
    """Rows like those of the flights: integers, doubles with nulls, short texts. The same at each run."""
    random = np.random.default_rng(7)
    columns: dict[str, pa.Array] = {f"i{n}": pa.array(random.integers(0, 3000, ROWS)) for n in range(8)}
    for n in range(6):
        columns[f"d{n}"] = pa.array(random.integers(-60, 2000, ROWS) / 2, mask=random.random(ROWS) < 0.03)
    names = np.array([f"N{n}" for n in range(4000)])
    columns |= {f"s{n}": pa.array(random.choice(names, ROWS)) for n in range(6)}
    return pa.table(columns)


def write_files(directory: Path) -> None:
    """Write the table as CSV (texts quoted), JSON lines and Parquet."""
    rows = table()
    pa_csv.write_csv(rows, directory / "a.csv")
    pq.write_table(rows, directory / "a.parquet")
    (directory / "a.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows.to_pylist()))


def source(directory: Path, ending: str) -> dict[str, object]:
    keys: dict[str, object] = {"name": f"in-{ending}", "connector": "file-source", "file": str(directory / f"a.{ending}")}
    return keys | {"topic": ending, "topic.partitions": 4, "key.columns": "s0", "value.columns": COLUMNS.replace("INT", "BIGINT")}


def read_rate(keys: dict[str, object]) -> float:
    """Rows per second of the reader alone: parse, check, make rows."""
    connector = load_connector(keys)
    assert isinstance(connector.plugin, SourceConnector)
    context = SourceContext(task=0, tasks=1, offset_of=lambda partition: None, clock_s=time.monotonic)
    start_s = time.perf_counter()
    rows = sum(0 if isinstance(batch, Idle) else len(batch.values) for batch in connector.plugin.read(connector.config, context))
    assert rows == ROWS
    return rows / (time.perf_counter() - start_s)


def connectors() -> Iterable[Figure]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_files(directory)
        for ending in ("csv", "jsonl", "parquet"):
            yield Figure(f"file source, {ending}, reading alone", read_rate(source(directory, ending)), "rows/s")
        with connect(str(directory / "data")) as log:
            for ending in ("csv", "jsonl", "parquet"):
                yield Figure(
                    f"file source, {ending} to a durable topic",
                    timed(log, source(directory, ending)),
                    "rows/s",
                    BUDGET_ROWS_PER_S,
                )
            columns = {"topics": "csv", "value.columns": COLUMNS}
            out = {"name": "out-parquet", "connector": "parquet-sink", "path": str(directory / "out"), **columns}
            yield Figure("Parquet sink", timed(log, out), "rows/s")
            database = {
                "name": "out-sql",
                "connector": "sql-sink",
                "connection.url": f"sqlite:///{directory / 'a.db'}",
                **columns,
            }
            yield Figure("SQL sink, SQLite, insert", timed(log, database), "rows/s")


def timed(log: Log, keys: dict[str, object]) -> float:
    """Run one connector to its end, start included; rows per second."""
    start_s = time.perf_counter()
    (status,) = run_connectors(log, [keys], is_once=True)
    assert status.records == ROWS, status
    return ROWS / (time.perf_counter() - start_s)


if __name__ == "__main__":
    main(connectors)
