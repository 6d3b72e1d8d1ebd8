"""SQL: how long a statement takes to plan and compile, and what topologies T1 to T4 cost when written in SQL.

Run: python -m benchmarks.sql [planning|queries] [--json]

The queries run as in `benchmarks.streams_programs` (stores in memory, no log), so that both can be compared: SQL should cost
what the DSL costs. Each query runs without the kernels and with them; each figure says which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks._report import Figure, main
from benchmarks.streams_programs import CHUNK, REPEATS, Sink, clicks
from logflume.log.records import Chunk
from logflume.sql import Catalog, plan_query
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_statement
from logflume.streams import plan
from logflume.streams.kernels import kernel_loader
from logflume.streams.seams import Program
from logflume.streams.state.store import Store

SOURCES = (
    "CREATE STREAM CLICKS (K STRING KEY, ID BIGINT, USER STRING, PAGE STRING, MS BIGINT, PRICE DOUBLE, OK BOOLEAN) "
    "WITH (KAFKA_TOPIC='clicks', VALUE_FORMAT='JSON')",
    "CREATE TABLE USERS (K STRING PRIMARY KEY, NAME STRING, COUNTRY STRING) WITH (KAFKA_TOPIC='users', VALUE_FORMAT='JSON')",
)
QUERIES = {
    "T1 filter, project": "CREATE STREAM T1 AS SELECT K, ID, USER, PAGE, PRICE * 1.2E0 AS P FROM CLICKS WHERE OK AND MS > 100",
    "T2 count, 10 k keys": "CREATE TABLE T2 AS SELECT K, COUNT(*) AS N FROM CLICKS GROUP BY K",
    "T3 tumbling count and sum, 10 k keys": (
        "CREATE TABLE T3 AS SELECT K, COUNT(*) AS N, SUM(PRICE) AS TOTAL FROM CLICKS "
        "WINDOW TUMBLING (SIZE 10 SECONDS, GRACE PERIOD 10 SECONDS) GROUP BY K"
    ),
    "T4 stream-table join, 100 k keys": (
        "CREATE STREAM T4 AS SELECT CLICKS.K, ID, PAGE, MS, PRICE, OK, NAME, COUNTRY FROM CLICKS JOIN USERS ON CLICKS.K = USERS.K"
    ),
}
BUDGETS = {"T1": 800_000, "T2": 700_000, "T3": 350_000, "T4": 300_000}
COMPILED_BUDGETS = {"T1": 2_500_000, "T2": 2_500_000, "T3": 800_000, "T4": 1_500_000}


def catalog() -> Catalog:
    """Return the catalog with the sources."""
    made = Catalog()
    for text in SOURCES:
        made = apply_definition(parse_statement(text), Context(made))
    return made


def records_per_s(program: Program, chunks: list[Chunk], users: int) -> float:
    """Return records per CPU second, the best of a few runs; a task commit after each chunk."""
    best = 0.0
    for _ in range(REPEATS):
        stores = {spec.name: Store(spec) for spec in program.stores}
        sink = Sink()
        task = program.bind(stores, sink, sink)
        if "USERS" in program.sources:
            rows: list[bytes | None] = [b'{"NAME":"n%d","COUNTRY":"DE"}' % i for i in range(users)]
            keys: list[bytes | None] = [b"u%05d" % i for i in range(users)]
            table = Chunk.from_columns("users", keys, rows, np.zeros(users, dtype=np.int64), partition=0)
            task.process("USERS", table, 0, users)
        started = time.process_time()
        for chunk in chunks:
            task.process("CLICKS", chunk, 0, len(chunk))
            task.flush()
            for store in stores.values():
                store.committed()
        best = max(best, len(chunks) * CHUNK / (time.process_time() - started))
        assert sink.records > 0
    return best


def measure_queries() -> Iterator[Figure]:
    """Records a second of each query, without the kernels and with them."""
    sources = catalog()
    few, many = clicks(10_000), clicks(100_000)
    kernel_loader().stay_out()
    for is_compiled in (False, True):
        if is_compiled and not kernel_loader().load():
            return
        for name, text in QUERIES.items():
            chunks, users = (many, 100_000) if name.startswith("T4") else (few, 10_000)
            program = plan(replace(plan_query(text, sources), name="benchmark")).subtopologies[0].program
            figure = records_per_s(program, chunks, users)
            label = f"{name} (SQL, {'with' if is_compiled else 'without'} kernels, no log)"
            yield Figure(label, figure, "records/s", (COMPILED_BUDGETS if is_compiled else BUDGETS)[name[:2]])


def measure_planning() -> Iterator[Figure]:
    """Milliseconds from text to topology, and on to generated code; the first statement builds the parser."""
    started = time.perf_counter()
    parse_statement(SOURCES[0])
    yield Figure("first parse of a process", (time.perf_counter() - started) * 1e3, "ms")
    sources = catalog()
    text = QUERIES["T3 tumbling count and sum, 10 k keys"]
    for name, step in (
        ("parse", lambda: parse_statement(text)),
        ("text to topology", lambda: plan_query(text, sources)),
        ("text to generated code", lambda: plan(plan_query(text, sources))),
    ):
        started = time.perf_counter()
        for _ in range(20):
            step()
        yield Figure(f"{name}, a windowed aggregate", (time.perf_counter() - started) / 20 * 1e3, "ms")


if __name__ == "__main__":
    main(measure_planning, measure_queries)
