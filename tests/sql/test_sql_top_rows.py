"""The first rows of each group, followed: what is there afterwards is what a query that ends says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from logflume.log import Log
from logflume.sql import SqlEngine, StatementError
from logflume.sql.results import PushQuery

COLUMNS = "(auction INT, bidder STRING, price INT)"
STREAM = f"CREATE STREAM bids {COLUMNS} WITH (KAFKA_TOPIC='bids', PARTITIONS=3, VALUE_FORMAT='JSON');"
BEST = "ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place"


@pytest.fixture
def engine(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path_factory.mktemp("sql")) as opened:
        yield opened


def run(engine: SqlEngine, text: str) -> Any:
    return list(engine.execute(text))[-1]


def insert(engine: SqlEngine, numbers: random.Random, count: int) -> None:
    prices = numbers.sample(range(10_000), count)  # all different: of equal ones the first to come stands first
    rows = [f"({numbers.randrange(4)}, 'b{numbers.randrange(9)}', {price})" for price in prices]
    run(engine, f"INSERT INTO bids (auction, bidder, price) VALUES {', '.join(rows)};")


def eventually(engine: SqlEngine, text: str, wanted: list[tuple[Any, ...]]) -> None:
    """Wait until a query gives these rows."""
    follow = run(engine, text.removesuffix(";") + " EMIT SNAPSHOT, CHANGES;")
    assert isinstance(follow, PushQuery)
    found: dict[Any, Any] = {}
    with follow:
        while sorted(found.values()) != wanted:
            row = follow.poll()
            if row is not None:
                found[row.values[:2]] = row.values


def test_a_table_of_the_best_rows_is_what_a_query_that_ends_gives(engine: SqlEngine) -> None:
    numbers = random.Random(7)
    run(engine, STREAM)
    insert(engine, numbers, 40)
    run(
        engine,
        f"CREATE TABLE best WITH (KEY_FORMAT='JSON') AS SELECT auction, {BEST}, bidder, price * 2 AS twice FROM bids "
        "WHERE bidder <> 'b0' QUALIFY place <= 3;",
    )
    insert(engine, numbers, 40)
    ending = run(engine, f"SELECT auction, {BEST}, bidder, price * 2 AS twice FROM bids WHERE bidder <> 'b0' QUALIFY place <= 3;")
    wanted = sorted(ending.rows)
    assert len(wanted) == 12
    eventually(engine, "SELECT auction, place, bidder, twice FROM best;", wanted)
    assert sorted(run(engine, "SELECT auction, place, bidder, twice FROM best;").rows) == wanted


def test_who_watches_is_given_the_rows_of_a_group_anew(engine: SqlEngine) -> None:
    run(engine, STREAM + "INSERT INTO bids VALUES (1, 'a', 5);")
    watched = f"SELECT bidder, {BEST} FROM bids QUALIFY place < 3 EMIT CHANGES;"
    with run(engine, watched) as query:
        rows = iter(query)
        assert next(rows).values == ("a", 1)
        run(engine, "INSERT INTO bids VALUES (1, 'b', 9);")
        assert [next(rows).values for _ in range(2)] == [("b", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT LAG(price) OVER (PARTITION BY auction ORDER BY price) AS p FROM bids EMIT CHANGES;", "LAG .* needs all rows"),
        ("SELECT ROW_NUMBER() OVER (ORDER BY price DESC) AS place FROM bids QUALIFY place = 1 EMIT CHANGES;", "PARTITION BY"),
        (f"SELECT auction, {BEST} FROM bids EMIT CHANGES;", "QUALIFY place <= number"),
        (f"SELECT auction, {BEST} FROM bids QUALIFY place = 2 EMIT CHANGES;", "QUALIFY place <= number"),
        (f"SELECT auction, {BEST} FROM bids QUALIFY place <= 5000 EMIT CHANGES;", "at most the first 1,000"),
        (f"CREATE TABLE t AS SELECT {BEST}, price FROM bids QUALIFY place = 1;", "must select AUCTION once"),
        (f"CREATE TABLE t AS SELECT auction, {BEST} FROM bids QUALIFY place = 1;", "no value columns"),
        (f"CREATE STREAM t AS SELECT auction, {BEST}, price FROM bids QUALIFY place = 1;", "produces a TABLE"),
        (f"CREATE TABLE t AS SELECT auction, {BEST}, price + 1 FROM bids QUALIFY place = 1;", "needs a name"),
        (f"SELECT *, {BEST} FROM bids QUALIFY place = 1 EMIT CHANGES;", r"name them in place of \*"),
        (
            f"SELECT auction, {BEST} FROM bids HAVING price > 1 QUALIFY place = 1 EMIT CHANGES;",
            "the first rows of each group alone",
        ),
        (
            "SELECT auction, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC NULLS FIRST) AS place FROM bids "
            "QUALIFY place = 1 EMIT CHANGES;",
            "ROW_NUMBER",
        ),
        (f"SELECT auction, {BEST} FROM prices QUALIFY place = 1 EMIT CHANGES;", "of a stream, found the table PRICES"),
        (
            f"SELECT * FROM (SELECT auction, {BEST}, price FROM bids QUALIFY place = 1) b WHERE price < 5 EMIT CHANGES;",
            "CREATE TABLE",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(engine: SqlEngine, text: str, message: str) -> None:
    run(engine, STREAM)
    run(
        engine,
        "CREATE TABLE prices (id INT PRIMARY KEY, auction INT, price INT) WITH (KAFKA_TOPIC='prices', PARTITIONS=1, "
        "FORMAT='JSON');",
    )
    with pytest.raises(StatementError, match=message):
        run(engine, text)


def test_a_query_that_ends_has_the_first_rows_of_a_table(engine: SqlEngine) -> None:
    columns = "(id INT PRIMARY KEY, auction INT, price INT)"
    run(engine, f"CREATE TABLE bids {columns} WITH (KAFKA_TOPIC='bids', PARTITIONS=1, FORMAT='JSON');")
    run(engine, "INSERT INTO bids VALUES (1, 7, 5); INSERT INTO bids VALUES (2, 7, 9); INSERT INTO bids VALUES (2, 7, 3);")
    assert run(engine, f"SELECT id, {BEST} FROM bids QUALIFY place = 1;").rows == ((1, 1),)
