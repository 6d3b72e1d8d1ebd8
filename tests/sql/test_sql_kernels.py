"""Queries with the kernels and without them: random rows give the same results, stores and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.records import Chunk
from logflume.sql import Catalog, plan_query
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_statement
from logflume.streams import plan
from logflume.streams.kernels import kernel_loader
from logflume.streams.seams import Program
from logflume.streams.state.store import Store

numba = pytest.importorskip("numba", reason="the kernels need numba")

SOURCES = (
    "CREATE STREAM CLICKS (K STRING KEY, ID BIGINT, N INTEGER, PAGE STRING, PRICE DOUBLE, OK BOOLEAN) "
    "WITH (KAFKA_TOPIC='clicks', VALUE_FORMAT='JSON')",
    "CREATE TABLE USERS (K STRING PRIMARY KEY, NAME STRING, AGE INTEGER) WITH (KAFKA_TOPIC='users', VALUE_FORMAT='JSON')",
)
QUERIES = (
    "CREATE STREAM Q AS SELECT K, ID, PRICE * 1.2E0 AS P, ID / N AS QUOTIENT, ID % N AS REST FROM CLICKS WHERE OK OR N > 3",
    "CREATE STREAM Q AS SELECT K, UCASE(PAGE) + '-' + K AS A, LEN(PAGE) AS L, CONCAT(K, PAGE, 'x') AS C FROM CLICKS",
    "CREATE STREAM Q AS SELECT K, COALESCE(PAGE, 'none') AS A, IFNULL(ID, 0) AS B, NULLIF(N, 3) AS C, ABS(ID) AS D FROM CLICKS",
    "CREATE STREAM Q AS SELECT K, CASE WHEN N > 3 THEN 'many' WHEN N = 0 THEN 'none' ELSE PAGE END AS A, "
    "CAST(N AS STRING) AS B, CAST(PRICE AS BIGINT) AS C, CAST(PAGE AS INTEGER) AS D FROM CLICKS "
    "WHERE PAGE >= 'b' OR PAGE IS NULL",
    "CREATE STREAM Q AS SELECT K, SUBSTRING(PAGE, 2, 3) AS A, LPAD(K, 3, '-') AS B, TRIM(PAGE) AS C, REPLACE(PAGE, 'a', 'b') D, "
    "INSTR(PAGE, 'n') AS E, SUBSTRING(PAGE, -2) AS F, CONCAT(PAGE, K) AS G FROM CLICKS WHERE PAGE LIKE '%p%' OR PAGE LIKE '_'",
    "CREATE STREAM Q AS SELECT K, TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd HH:mm:ss.SSS') AS A, FLOOR(PRICE) AS B, ROUND(PRICE) C, "
    "SQRT(PRICE) AS D, SIGN(N) AS E, GREATEST(N, 3) AS F, LEAST(PRICE, 1.5E0) AS G, TRUNC(PRICE) AS H FROM CLICKS",
    "CREATE STREAM Q AS SELECT K, CAST(FROM_UNIXTIME(ROWTIME) AS STRING) A, CAST(PAGE AS DOUBLE) B, CAST(PAGE AS BOOLEAN) C, "
    "STRINGTODATE(PAGE, 'yyyy-MM-dd') AS D, CAST(OK AS STRING) AS E, REGEXP_EXTRACT('[0-9]+', PAGE) AS F FROM CLICKS",
    "CREATE STREAM Q AS SELECT K, ROWTIME AS T, ROWPARTITION AS P, ROWOFFSET AS O, AS_VALUE(K) AS V FROM CLICKS",
    "CREATE STREAM Q AS SELECT PAGE, ID, OK FROM CLICKS WHERE NOT (ID = 3) PARTITION BY PAGE",
    "CREATE STREAM Q AS SELECT ID, PAGE FROM CLICKS PARTITION BY ID",
    "CREATE STREAM Q AS SELECT CLICKS.K, ID, NAME, AGE + N AS SUM, U.K AS UK FROM CLICKS JOIN USERS U ON CLICKS.K = U.K",
    "CREATE STREAM Q AS SELECT CLICKS.K, ID, UCASE(NAME) AS A FROM CLICKS LEFT JOIN USERS ON CLICKS.K = USERS.K",
    "CREATE TABLE Q AS SELECT K, COUNT(*) AS C, SUM(ID) AS S, MIN(PRICE) AS LEAST, MAX(N) AS MOST FROM CLICKS GROUP BY K",
    "CREATE TABLE Q AS SELECT K, COUNT(*) AS C, AVG(PRICE) AS MEAN, SUM(PRICE) AS S FROM CLICKS "
    "WINDOW TUMBLING (SIZE 1 SECONDS, GRACE PERIOD 1 SECONDS) GROUP BY K",
)
TEXTS = st.sampled_from(["a", "b", "", "7", "-12", "page one", 'q"', "caf\u00e9"])
NUMBERS = st.one_of(st.integers(-3, 9), st.integers(-(2**31), 2**31 - 1), st.just(2**53))
PRICES = st.one_of(st.integers(-400, 400).map(lambda n: n / 4), st.floats(-1e9, 1e9))


class Recorder:
    """What a program puts out per node, and reports."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Any]] = {}
        self.problems: list[Any] = []

    def send(self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], **more: Any) -> None:
        self.outputs.setdefault(node, []).extend(zip(keys, values, timestamps_ms, strict=True))

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.send(node, records.keys(), records.values(), records.timestamps_ms.tolist())

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.problems.append((reason, node, topic, partition, offset, str(cause)))


def catalog() -> Catalog:
    made = Catalog()
    for text in SOURCES:
        made = apply_definition(parse_statement(text), Context(made))
    return made


def encoded(row: dict[str, Any]) -> bytes:
    import json

    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()


@st.composite
def clicks(draw: st.DrawFn) -> bytes:
    values = (draw(NUMBERS), draw(st.integers(-2, 5)), draw(TEXTS), draw(PRICES), draw(st.booleans()))
    row: dict[str, Any] = dict(zip(("id", "n", "page", "price", "ok"), values, strict=True))
    for name in draw(st.lists(st.sampled_from(list(row)), max_size=2)):
        row[name] = draw(st.sampled_from([None, "text", 1.5]))
    if draw(st.integers(0, 3)) == 0:
        row = {name.upper(): value for name, value in row.items()}
    if draw(st.integers(0, 9)) == 0:
        row["ID"] = 4
    return encoded(row)


def run(program: Program, chunks: list[tuple[str, Chunk]]) -> tuple[Any, ...]:
    stores = {spec.name: Store(spec) for spec in program.stores}
    recorder = Recorder()
    task = program.bind(stores, recorder, recorder)
    for source, chunk in chunks:
        if source in program.sources:
            task.process(source, chunk, 0, len(chunk))
        task.flush()
        for store in stores.values():
            store.committed()
    entries = {name: [(k, v.state, v.timestamp_ms) for k, v in s.range(b"", None)] for name, s in stores.items()}
    return recorder.outputs, recorder.problems, entries


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(clicks(), min_size=1, max_size=8), st.lists(st.integers(0, 7), min_size=20, max_size=40),
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), TEXTS), NUMBERS), min_size=2, max_size=6),
)  # fmt: skip
@pytest.mark.parametrize("text", QUERIES)
def test_queries_are_answered_alike_with_the_kernels_and_without(
    text: str, odd: list[bytes], picks: list[int], users: list[Any]
) -> None:
    assert kernel_loader().load()
    program = plan(replace(plan_query(text, catalog()), name="tiers")).subtopologies[0].program
    plain = [encoded({"id": n * 11, "n": 1 + n % 5, "page": f"p{n}", "price": n / 4, "ok": n % 2 == 0}) for n in range(120)]
    data: list[bytes | None] = [*plain, *(odd[pick % len(odd)] for pick in picks), *plain[:30]]
    keys: list[bytes | None] = [[b"a", b"b", b"c", b"d"][n % 4] for n in range(len(data))]
    times = [1_000 + 20 * n - (2_500 if n % 17 == 0 else 0) for n in range(len(data))]
    stream = Chunk.from_columns("clicks", keys, data, times, partition=0)
    rows = [None if name is None else encoded({"name": name, "age": age}) for _, name, age in users]
    table = Chunk.from_columns("users", [key for key, _, _ in users], rows, [1] * len(rows), partition=0)
    chunks = [("USERS", table.slice(0, 1)), ("CLICKS", stream), ("USERS", table.slice(1, len(rows))), ("CLICKS", stream)]
    with kernel_loader().held_back():
        expected = run(program, chunks)
    got = run(program, chunks)
    assert got[1] == expected[1]
    assert got[0] == expected[0]
    assert got[2] == expected[2]
