"""Functions over rows, QUALIFY and AS OF: what they give, beside the same computed plainly, and where they are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import connect
from logflume.sql import Rows, SqlEngine, SqlError, StatementError

from .test_sql_once import rows

SALES = [(1, "ann", 5, 10), (2, "bob", 7, 20), (3, "ann", 5, 30), (4, "cy", None, 40), (5, "bob", 1, 50), (6, "ann", 9, 60)]
SETUP = f"""
CREATE STREAM sales (id INT KEY, who STRING, cents BIGINT) WITH (KAFKA_TOPIC='sales', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE TABLE users (name STRING PRIMARY KEY, town STRING) WITH (KAFKA_TOPIC='users', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO sales (ROWTIME, id, who, cents) VALUES
    {", ".join(f"({t}, {i}, '{w}', {'NULL' if c is None else c})" for i, w, c, t in SALES)};
INSERT INTO users (ROWTIME, name, town) VALUES (10, 'ann', 'Ulm'), (20, 'bob', 'Bonn'), (30, 'ann', 'Bern');
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    folder: Path = tmp_path_factory.mktemp("over")
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as opened:
        list(opened.execute(SETUP))
        yield opened


CASES = {
    "SELECT id, ROW_NUMBER() OVER (PARTITION BY who ORDER BY cents DESC, id) AS n FROM sales QUALIFY n = 1 ORDER BY id": [
        (2, 1), (4, 1), (6, 1),
    ],
    "SELECT who, SUM(cents) AS total, RANK() OVER (ORDER BY SUM(cents) DESC) AS place FROM sales GROUP BY who ORDER BY place": [
        ("ann", 19, 1), ("bob", 8, 2), ("cy", 0, 3),
    ],
    "SELECT id, LAG(cents, 1, -1) OVER (ORDER BY id) + 1 FROM sales ORDER BY id LIMIT 3": [(1, 0), (2, 6), (3, 8)],
    "SELECT id, SUM(cents) OVER (ORDER BY id) AS so_far, COUNT(*) OVER () AS n FROM sales WHERE id < 4 ORDER BY id": [
        (1, 5, 3), (2, 12, 3), (3, 17, 3),
    ],
    "SELECT id, COLLECT_LIST(id) OVER (ORDER BY id) AS ids FROM sales WHERE id < 4 ORDER BY id": [
        (1, [1]), (2, [1, 2]), (3, [1, 2, 3]),
    ],
    "SELECT RANK() OVER (ORDER BY id) AS r FROM sales WHERE id > 99 ORDER BY r": [],
    "SELECT *, LEAD(who) OVER (ORDER BY id) AS next FROM sales LIMIT 2": [(1, "ann", 5, "bob"), (2, "bob", 7, "ann")],
    "SELECT s.id, u.town, ROW_NUMBER() OVER (PARTITION BY u.town ORDER BY s.id) AS n FROM sales s JOIN users u ON s.who = u.name "
    "QUALIFY n = 1": [(3, "Ulm", 1), (5, "Bonn", 1), (6, "Bern", 1)],
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_what_functions_over_rows_give(engine: SqlEngine, text: str) -> None:
    found = rows(engine, f"{text};")
    assert (found if "ORDER BY id" in text.rpartition(")")[2] or "place" in text else sorted(found)) == CASES[text]


FUNCTIONS = [
    *(
        "ROW_NUMBER()",
        "RANK()",
        "DENSE_RANK()",
        "LAG(cents)",
        "LAG(cents, 2, 0)",
        "LEAD(id)",
        "FIRST_VALUE(cents)",
        "LAST_VALUE(id)",
    ),
    *("SUM(cents)", "COUNT(cents)", "COUNT(*)", "MIN(cents)", "MAX(id)"),
]


@settings(max_examples=40, deadline=None)
@given(
    function=st.sampled_from(FUNCTIONS),
    partition=st.sampled_from(["", "PARTITION BY who", "PARTITION BY who, cents > 5", "PARTITION BY cents IS NULL"]),
    order=st.sampled_from(["id", "id DESC", "who, id", "cents, id DESC", "cents DESC NULLS FIRST, id", "who"]),
)
def test_they_give_what_another_engine_gives(engine: SqlEngine, function: str, partition: str, order: str) -> None:
    """SQLite sorts nulls first unless told otherwise, and sums nothing to null, where the dialect has them last and 0."""
    if order == "who" and not function.startswith(("RANK", "DENSE", "SUM", "COUNT", "MIN", "MAX")):
        order = "who, id"
    query = f"SELECT id, {function} OVER ({partition} ORDER BY {{}}) AS f FROM sales ORDER BY id"
    found = rows(engine, query.format(order) + ";")
    other = sqlite3.connect(":memory:")
    other.execute("CREATE TABLE sales (id INTEGER, who TEXT, cents INTEGER, at INTEGER)")
    other.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", SALES)
    there = ", ".join(part if "NULLS" in part else f"{part} NULLS LAST" for part in order.split(", "))
    wanted = other.execute(query.format(there)).fetchall()
    if function == "SUM(cents)":
        wanted = [(n, 0 if value is None else value) for n, value in wanted]
    assert found == wanted


WRONG = {
    "SELECT ROW_NUMBER() OVER () FROM sales": "ROW_NUMBER needs an order",
    "SELECT RNK() OVER (ORDER BY id) FROM sales": r"RNK is not a function over rows; .* Did you mean RANK\?",
    "SELECT RANK(id) OVER (ORDER BY id) FROM sales": r"RANK\(\) has no arguments",
    "SELECT LAG(id, -1) OVER (ORDER BY id) FROM sales": "LAG",
    "SELECT SUM(RANK() OVER (ORDER BY id)) OVER () FROM sales": "can not be nested",
    "SELECT RANK() OVER (ORDER BY nope) FROM sales": "'NOPE' cannot be resolved",
    "SELECT id FROM sales WHERE RANK() OVER (ORDER BY id) = 1": "RANK OVER .* needs all rows",
    "SELECT RANK() OVER (ORDER BY ARRAY[id]) FROM sales": "have no order",
    "SELECT RANK() OVER (ORDER BY 1) FROM sales": "expected a column or an expression over columns, found 1",
    "SELECT DISTINCT RANK() OVER (ORDER BY id) FROM sales": "do not go with SELECT DISTINCT",
    "SELECT RANK() OVER (ORDER BY id) FROM sales EMIT CHANGES": "needs all rows",
    "CREATE STREAM x AS SELECT id FROM sales QUALIFY id = 1": "QUALIFY is for queries that end",
    "SELECT id, RANK() OVER (ORDER BY id) AS r FROM sales QUALIFY r": "Should evaluate to boolean but is",
    "SELECT * FROM sales AS OF OFFSET 1 EMIT CHANGES": "AS OF is for queries that end",
    "SELECT * FROM sales AS OF TIMESTAMP 'yesterday'": "(?s)AS OF TIMESTAMP: .* write it as '2026-01-31T18:30:00'",
    "SELECT a.id FROM sales a JOIN sales AS OF OFFSET 1 b WITHIN 1 DAY ON a.id = b.id": "read at two points",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_says_why(engine: SqlEngine, text: str) -> None:
    with pytest.raises(StatementError, match=WRONG[text]):
        list(engine.execute(f"{text};"))


POINTS = {
    "SELECT id FROM sales AS OF OFFSET 2": [(1,), (2,)],
    "SELECT id FROM sales AS OF OFFSET 100": [(n,) for n in range(1, 7)],
    "SELECT id FROM sales AS OF TIMESTAMP 30 s WHERE s.id > 1": [(2,), (3,)],
    "SELECT COUNT(*), SUM(cents) FROM sales AS OF TIMESTAMP '1970-01-01T00:00:00.050'": [(5, 18)],
    "SELECT name, town FROM users AS OF TIMESTAMP 20": [("ann", "Ulm"), ("bob", "Bonn")],
    "SELECT name, town FROM users": [("ann", "Bern"), ("bob", "Bonn")],
    "SELECT who, town FROM sales AS OF TIMESTAMP 30 JOIN users AS OF OFFSET 1 ON who = name": [("ann", "Ulm")],
    "SELECT n FROM (SELECT COUNT(*) AS n FROM sales AS OF OFFSET 3 GROUP BY who) x": [(1,), (2,)],
}


@pytest.mark.parametrize("text", POINTS)
def test_topics_as_they_were(engine: SqlEngine, text: str) -> None:
    assert sorted(rows(engine, f"{text};")) == sorted(POINTS[text])


def test_offsets_are_one_for_each_partition(engine: SqlEngine) -> None:
    with pytest.raises(SqlError, match=r"topic sales has 1 partition\(s\), found 2 offset\(s\).* AS OF OFFSET \(6\)"):
        list(engine.execute("SELECT * FROM sales AS OF OFFSET (1, 2);"))


def test_a_time_in_another_zone(engine: SqlEngine) -> None:
    text = "SELECT CAST('2026-07-01T12:00:00' AS TIMESTAMP) AT TIME ZONE 'Europe/Berlin' AS there FROM sales LIMIT 1;"
    (result,) = engine.execute(text)
    assert isinstance(result, Rows)
    assert str(result.columns[0].type) == "TIMESTAMP"
    assert result.rows == ((1782914400000,),)  # 14:00
