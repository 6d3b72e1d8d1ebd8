"""What a query leaves out is kept in the topic that it was made with: told, refused where it cannot be, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from logflume.log import InvalidInput
from logflume.log.interfaces import Log
from logflume.log.records import Record
from logflume.log.registry import Rights
from logflume.sql import Rows, SqlClient, SqlEngine, StatementError
from logflume.sql.dead_letters import DEAD_LETTER_NAMES, DEAD_LETTERS
from logflume.sql.session import Session
from logflume.streams.runtime import replay
from tests.streams.running import read, until

from ._spark_driver import driven
from .conftest import served

SETUP = "CREATE STREAM s (id INT KEY, n INT, pad STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
KEPT = f"SET '{DEAD_LETTERS}' = 'dead';"
QUERY = "CREATE STREAM o WITH (KAFKA_TOPIC='o') AS SELECT id, 10 / n AS share, pad FROM s;"
BROKEN, ZERO, LARGE, GOOD = b"{", b'{"N":0}', b'{"N":1,"PAD":"%s"}' % (b"x" * 2000), b'{"N":5}'


@pytest.fixture
def engine(log: Log, tmp_path: Path) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path / "sql") as opened:
        list(opened.execute(SETUP))
        yield opened


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    result = list(engine.execute(text))[-1]
    assert isinstance(result, Rows)
    return list(result.rows)


def write(log: Log, topic: str, *values: bytes) -> None:
    with log.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=number.to_bytes(4, "big"), timestamp_ms=1_000 + number)


def letters(log: Log, topic: str, count: int) -> list[Record]:
    return list(until(lambda: found if len(found := read(log, topic)) >= count else None))


def facts(letter: Record) -> dict[str, str]:
    return {name.removeprefix("__streams.errors."): (value or b"").decode() for name, value in letter.headers}


@pytest.mark.parametrize("name", DEAD_LETTER_NAMES)
def test_what_cannot_be_read_evaluated_or_put_out_is_kept_and_put_back(engine: SqlEngine, log: Log, name: str) -> None:
    log.admin().create_topic("o", configs={"max.message.bytes": "1000"})
    list(engine.execute(f"SET '{name}' = 'dead'; {QUERY}"))
    write(log, "s", BROKEN, ZERO, LARGE, GOOD)
    kept = {facts(each)["reason"]: each for each in letters(log, "dead", 3)}
    told = {reason: facts(each) for reason, each in kept.items()}
    assert {reason: each["topic"] for reason, each in told.items()} == {"decode": "s", "expression": "s", "refused": "o"}
    assert {each["application"] for each in told.values()} == {"logflume-sql-CSAS_O_0"}
    assert (kept["decode"].value, kept["decode"].timestamp_ms, told["decode"]["offset"]) == (BROKEN, 1_000, "0")
    assert (kept["expression"].value, told["expression"]["offset"]) == (ZERO, "1")
    assert "max.message.bytes is 1000" in told["refused"]["message"]
    assert [each.value for each in read(log, "o")] == [b'{"SHARE":null,"PAD":null}', b'{"SHARE":2,"PAD":null}']
    log.admin().alter_topic_configs("o", {"max.message.bytes": "100000"})
    assert replay(log, "dead") == {"s": 2, "o": 1}
    assert [(each.value, each.headers) for each in read(log, "s")[4:]] == [(BROKEN, ()), (ZERO, ())]
    assert len(letters(log, "dead", 5)) == 5, "what is still wrong comes back"
    assert [each.value for each in read(log, "o") if each.value and b"xxx" in each.value] == [
        b'{"SHARE":10,"PAD":"%s"}' % (b"x" * 2000)
    ]


def test_each_query_has_its_own_topic_also_after_a_restart(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    made = "CREATE STREAM {0} AS SELECT * FROM s; "
    text = f"{KEPT} {made.format('a')} SET '{DEAD_LETTERS}' = 'others'; {made.format('b')} SET '{DEAD_LETTERS}' = '';"
    list(engine.execute(f"{text} {made.format('c')}"))
    engine.close()
    with SqlEngine(log, tmp_path / "sql") as again:
        write(log, "s", BROKEN)
        assert [facts(each[0])["application"] for each in (letters(log, "dead", 1), letters(log, "others", 1))] == [
            "logflume-sql-CSAS_A_0",
            "logflume-sql-CSAS_B_1",
        ]
        dropped = until(lambda: found if all(found := [row[5] for row in rows(again, "SHOW QUERIES;")]) else None)
        assert dropped == [1, 1, 1]
        assert [row[9] for row in rows(again, "SHOW QUERIES;")] == ["dead", "others", ""]
        list(again.execute(f"{KEPT} CREATE OR REPLACE STREAM c AS SELECT * FROM s;"))
        write(log, "s", BROKEN)
        assert {facts(each)["application"][-8:] for each in letters(log, "dead", 3)} == {"CSAS_A_0", "CSAS_C_2"}


def test_it_is_told_and_kept_while_a_query_has_it(engine: SqlEngine, log: Log) -> None:
    list(engine.execute(f"{KEPT} {QUERY}"))
    assert ("Dead letters: topic dead",) in rows(engine, "EXPLAIN CSAS_O_0;")
    assert ("Dead letters: topic dead",) in rows(engine, "EXPLAIN SELECT * FROM s EMIT CHANGES;")
    assert [row[9] for row in rows(engine, "DESCRIBE o EXTENDED;")] == ["dead"]
    letter = "CREATE STREAM l (reason BYTES HEADER('__streams.errors.reason')) WITH (KAFKA_TOPIC='dead', VALUE_FORMAT='JSON');"
    write(log, "s", BROKEN)
    letters(log, "dead", 1)
    list(engine.execute(letter.replace("(reason", "(v STRING, reason").replace("'JSON'", "'KAFKA'")))
    assert rows(engine, "SELECT v, FROM_BYTES(reason, 'utf8') FROM l;") == [("{", "decode")]
    with pytest.raises(StatementError, match="CSAS_O_0 use it too"):
        list(engine.execute("DROP STREAM l DELETE TOPIC;"))
    list(engine.execute("TERMINATE CSAS_O_0; DROP STREAM l DELETE TOPIC;"))
    assert "dead" not in log.admin().list_topics()


def test_a_server_takes_it_with_the_statement_and_tells_it(tmp_path: Path) -> None:
    with served(tmp_path, SETUP) as server, httpx.Client(base_url=server.address, timeout=120) as client:

        def told(text: str, **properties: str) -> Any:
            return client.post("/ksql", json={"ksql": text, "streamsProperties": properties}).json()[0]

        told(f"{QUERY} CREATE STREAM p AS SELECT * FROM s;", **{DEAD_LETTERS: "dead"})
        told("CREATE STREAM bare AS SELECT * FROM s;")
        queries = {each["sinks"][0]: each.get("deadLetterTopic") for each in told("SHOW QUERIES;")["queries"]}
        assert queries == {"O": "dead", "P": "dead", "BARE": None}
        assert "Dead letters: topic dead" in told("EXPLAIN CSAS_O_0;")["queryDescription"]["executionPlan"]
        with SqlClient(server.address) as shell:
            described = [each for each in shell.execute("DESCRIBE o EXTENDED;") if isinstance(each, Rows)]
            assert described[-1].rows[0][::2] == ("CSAS_O_0", "dead")


@pytest.mark.parametrize("topic", ["_logflume-sql-commands", "__consumer_offsets", "x-AGGREGATE-changelog", "x-repartition"])
def test_internal_topics_keep_none(engine: SqlEngine, topic: str) -> None:
    with pytest.raises(StatementError, match=f"topic {topic} is internal"):
        list(engine.execute(f"SET '{DEAD_LETTERS}' = '{topic}';"))
    with pytest.raises(StatementError, match=f"topic {topic} is internal"):
        list(engine.execute(QUERY, {DEAD_LETTERS: topic}))
    assert not engine.catalog.queries


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SET '{name}' = 's'; " + QUERY, "s is read by the query"),
        ("SET '{name}' = 'o'; " + QUERY, "o holds the results of a query"),
        ("SET '{name}' = 'P'; " + QUERY, "P holds the results of a query"),
        ("CREATE STREAM x WITH (KAFKA_TOPIC='gone') AS SELECT * FROM s;", "gone holds the dead letters of CSAS_P_0"),
        (SETUP.replace("M s", "M x").replace("'s'", "'gone'") + "INSERT INTO x SELECT * FROM s;", "gone holds the dead letters"),
    ],
)
def test_letters_and_results_are_never_in_one_topic(engine: SqlEngine, text: str, why: str) -> None:
    list(engine.execute(f"SET '{DEAD_LETTERS}' = 'gone'; CREATE STREAM p AS SELECT * FROM s; UNSET '{DEAD_LETTERS}';"))
    with pytest.raises(StatementError, match=why):
        list(engine.execute(text.format(name=DEAD_LETTERS)))
    assert list(engine.catalog.queries) == ["CSAS_P_0"]


def test_they_are_kept_on_spark_too_and_where_a_query_moves_to(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    engine.is_followed = True
    list(engine.execute(f"SET 'engine' = 'spark'; {KEPT} {QUERY} UNSET 'engine';"))
    for number, where in enumerate(("live", "spark", "live"), 1):
        with driven(log, tmp_path / "driver"):
            write(log, "s", BROKEN, GOOD, ZERO)
            found = letters(log, "dead", 2 * number)
            assert [facts(letter)["reason"] for letter in found].count("decode") == number
            assert len(found) == 2 * number
            list(engine.execute(f"PAUSE ALL; SET 'engine' = '{where}'; RESUME ALL; UNSET 'engine';"))


def test_a_compacted_topic_would_lose_letters(engine: SqlEngine, log: Log) -> None:
    log.admin().create_topic("dead", configs={"cleanup.policy": "compact"})
    with pytest.raises(InvalidInput, match="'dead' is compacted"):
        list(engine.execute(f"{KEPT} {QUERY}"))
    assert not engine.catalog.queries
    assert "o" not in log.admin().list_topics()


@pytest.mark.parametrize("text", [QUERY, "INSERT INTO t SELECT * FROM s;"])
def test_who_may_not_write_there_is_refused(engine: SqlEngine, text: str) -> None:
    list(engine.execute(SETUP.replace("STREAM s", "STREAM t").replace("'s'", "'t'")))
    bob = Session(rights=Rights("bob", read=("s",), write=("o", "t")))
    with pytest.raises(StatementError, match="user 'bob' may not write to topic dead"):
        list(engine.execute(f"{KEPT} {text}", session=bob))
    assert not engine.catalog.queries
    list(engine.execute(f"UNSET '{DEAD_LETTERS}'; {text}", session=bob))
    assert len(engine.catalog.queries) == 1
