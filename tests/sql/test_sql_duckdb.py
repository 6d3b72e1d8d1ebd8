"""Random queries without time, beside DuckDB over the same rows: computed once over a log, and followed from their start."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import connect
from logflume.sql import SqlEngine, plan_query
from logflume.streams.testing import TopologyTestDriver

from .test_sql_once import rows

SETUP = """
CREATE TABLE t (id INT PRIMARY KEY, name STRING, w BIGINT) WITH (KAFKA_TOPIC='t', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE TABLE u (id INT PRIMARY KEY, town STRING, of INT) WITH (KAFKA_TOPIC='u', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE STREAM r (i INT, l BIGINT, d DECIMAL(6, 2), s STRING) WITH (KAFKA_TOPIC='r', PARTITIONS=1, VALUE_FORMAT='JSON');
"""
DRAWN = random.Random(7)
NAMES = ("ann", "bob", "cy", "Zoë", "")


def maybe(value: Any) -> Any:
    return None if DRAWN.random() < 0.15 else value


def changes(count: int, ids: int, columns: dict[str, list[Any]]) -> list[tuple[int, dict[str, Any] | None]]:
    """Return changes of a table: its key, and the row, None where it goes."""
    return [
        (
            DRAWN.randrange(ids),
            None if DRAWN.random() < 0.1 else {name: maybe(DRAWN.choice(of)) for name, of in columns.items()},
        )
        for _ in range(count)
    ]


T = changes(20, 8, {"NAME": list(NAMES), "W": list(range(-5, 20))})
U = changes(20, 9, {"TOWN": ["Ulm", "Bonn", "Bern"], "OF": list(range(10))})
R = [
    {
        "I": maybe(DRAWN.randrange(9)),
        "L": maybe(DRAWN.randrange(-20, 20)),
        "D": maybe(Decimal(DRAWN.randrange(-9999, 9999)).scaleb(-2)),
        "S": maybe(DRAWN.choice(NAMES)),
    }
    for _ in range(60)
]


@dataclass(frozen=True)
class Source:
    """What a query reads: its FROM, the key that its result needs, and columns of numbers and of texts."""

    text: str
    is_table: bool
    key: str | None
    numbers: tuple[str, ...]
    texts: tuple[str, ...]


SOURCES = (
    Source("r", False, None, ("i", "l", "d"), ("s",)),
    Source("r JOIN t ON r.i = t.id", False, "r.i", ("r.l", "t.w", "r.d"), ("r.s", "t.name")),
    Source("r LEFT JOIN t ON r.i = t.id", False, "r.i", ("r.l", "t.w", "r.d"), ("r.s", "t.name")),
    Source("t", True, "id", ("w",), ("name",)),
    Source("t JOIN u ON t.id = u.id", True, "t.id", ("t.w", "u.of"), ("t.name", "u.town")),
    Source("t LEFT JOIN u ON t.id = u.id", True, "t.id", ("t.w", "u.of"), ("t.name", "u.town")),
    Source("u JOIN t ON u.of = t.id", True, "u.id", ("t.w", "u.of"), ("t.name", "u.town")),
    Source("u LEFT JOIN t ON u.of = t.id", True, "u.id", ("t.w", "u.of"), ("t.name", "u.town")),
)


@dataclass(frozen=True)
class Query:
    """One query: whether a table comes of it, whether its first column is a key, its text here and in DuckDB."""

    is_table: bool
    has_key: bool
    ours: str
    theirs: str


def numbers(source: Source) -> st.SearchStrategy[str]:
    column = st.sampled_from(source.numbers)
    return st.one_of(
        column,
        st.tuples(column, st.sampled_from("+-*"), column | st.just("3")).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        column.map(lambda c: f"ABS({c})"),
        st.sampled_from(source.texts).map(lambda c: f"LEN({c})"),
    )


def texts(source: Source) -> st.SearchStrategy[str]:
    column = st.sampled_from(source.texts)
    return st.one_of(column, column.map(lambda c: f"UCASE({c})"), column.map(lambda c: f"SUBSTRING({c}, 1, 2)"))


def conditions(source: Source) -> st.SearchStrategy[str]:
    number, text = numbers(source), texts(source)
    plain = st.one_of(
        st.tuples(number, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.integers(-5, 9)).map(
            lambda t: f"{t[0]} {t[1]} {t[2]}"
        ),
        number.map(lambda n: f"{n} BETWEEN -3 AND 6"),
        number.map(lambda n: f"{n} IN (1, 2, 3)"),
        st.tuples(text, st.sampled_from(["= 'bob'", "LIKE '%n%'", "IS NULL", "IS NOT NULL", "IN ('ann', 'Bonn')"])).map(" ".join),
    )
    return plain | st.tuples(plain, st.sampled_from(["AND", "OR"]), plain).map(lambda t: f"({t[0]} {t[1]} {t[2]})")


@st.composite
def queries(draw: st.DrawFn, sources: Sequence[Source] = SOURCES) -> Query:
    source = draw(st.sampled_from(sources))
    where = draw(st.none() | conditions(source))
    if draw(st.booleans()):
        return grouped(draw, source, where)
    cells = draw(st.lists(numbers(source) | texts(source), min_size=1, max_size=3))
    key = [f"{source.key} AS k"] if source.key else []
    selected = ", ".join(key + [f"{cell} AS c{n}" for n, cell in enumerate(cells)])
    text = f"SELECT {selected} FROM {source.text}" + (f" WHERE {where}" if where else "")
    return Query(source.is_table, bool(source.key), text, text)


def grouped(draw: st.DrawFn, source: Source, where: str | None) -> Query:
    """An aggregation. Rows whose group is null are left out, the sum of nothing is 0, and a group that all rows of a table have
    left stays, with nothing in it: so is ksqlDB."""
    by = draw(texts(source))
    of = draw(numbers(source))
    functions = ["COUNT(*)", f"COUNT({of})", f"SUM({of})", *(() if source.is_table else (f"MIN({of})", f"MAX({of})"))]
    calls = draw(st.lists(st.sampled_from(functions), min_size=1, max_size=3))
    having = draw(st.sampled_from([" HAVING COUNT(*) > 2", " HAVING COUNT(*) > 0" if source.is_table else ""]))
    ours = ", ".join([f"{by} AS g", *(f"{call} AS c{n}" for n, call in enumerate(calls))])
    theirs = ", ".join([f"{by} AS g", *(f"COALESCE({call}, 0)" if call.startswith("SUM") else call for call in calls)])
    kept = f"({where}) AND " if where else ""
    return Query(
        True,
        True,
        f"SELECT {ours} FROM {source.text}{f' WHERE {where}' if where else ''} GROUP BY {by}{having}",
        f"SELECT {theirs} FROM {source.text} WHERE {kept}{by} IS NOT NULL GROUP BY {by}{having}",
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    folder: Path = tmp_path_factory.mktemp("duckdb")
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as opened:
        list(opened.execute(SETUP))
        with log.producer() as producer:
            for time, (topic, key, value) in enumerate(records()):
                producer.send(topic, value, key=key, timestamp_ms=time)
        yield opened


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("CREATE TABLE t (id INT, name TEXT, w BIGINT)")
        opened.execute("CREATE TABLE u (id INT, town TEXT, of INT)")
        opened.execute("CREATE TABLE r (i INT, l BIGINT, d DECIMAL(6, 2), s TEXT)")
        for table, changed in (("t", T), ("u", U)):
            for key, row in dict(changed).items():
                if row is not None:
                    opened.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", [key, *row.values()])
        opened.executemany("INSERT INTO r VALUES (?, ?, ?, ?)", [list(row.values()) for row in R])
        yield opened


def records() -> Iterator[tuple[str, bytes | None, bytes | None]]:
    """Yield what is sent: the tables first, so that the stream meets them as they are in the end."""
    for topic, changed in (("t", T), ("u", U)):
        for key, row in changed:
            yield topic, key.to_bytes(4, "big"), None if row is None else json.dumps(row).encode()
    for values in R:
        text = json.dumps({name: f"#{cell}#" if isinstance(cell, Decimal) else cell for name, cell in values.items()})
        yield "r", None, text.replace('"#', "").replace('#"', "").encode()


def followed(query: Query, engine: SqlEngine) -> list[tuple[Any, ...]]:
    """Return what is left of the results of a query that runs for good."""
    driver = TopologyTestDriver(plan_query(f"CREATE {'TABLE' if query.is_table else 'STREAM'} o AS {query.ours}", engine.catalog))
    for time, (topic, key, value) in enumerate(records()):
        if topic in driver.inputs:
            driver.process(topic, key, value, time)
    found = driver.output("O").read()
    if not query.is_table:
        return [(*([record.key] if query.has_key else ()), *record.value.values()) for record in found]
    kept = {record.key: record.value for record in found}
    return [(key, *value.values()) for key, value in kept.items() if value is not None]


def alike(found: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Return rows in any order; numbers by what they are worth."""
    return Counter(tuple(Decimal(c) if isinstance(c, int) and not isinstance(c, bool) else c for c in row) for row in found)


@settings(max_examples=40, deadline=None)
@given(query=queries())
def test_duckdb_gives_the_same(engine: SqlEngine, duck: duckdb.DuckDBPyConnection, query: Query) -> None:
    expected = alike(duck.execute(query.theirs).fetchall())
    assert alike(rows(engine, f"{query.ours};")) == expected, query.ours
    assert alike(followed(query, engine)) == expected, query.ours
