"""Functions of SQL in Python: from files of a user to every engine, with the rules of those that come with logflume."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, Log, connect
from logflume.sql import SqlEngine, StatementError, load_functions
from logflume.sql.lint import lint_script
from logflume.sql.python_types import type_of_hint, type_of_text
from logflume.sql.running import application_id, compile_query
from logflume.sql.testing import run_cases
from logflume.streams.functions import Library
from logflume.streams.spark.executors import pickled
from tests.sql._spark_driver import driven
from tests.streams.running import read, until

FUNCTIONS = '''
from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal

from logflume.sql import aggregate, scalar, table


@scalar
def area(width: float, height: float) -> float:
    """The area of a rectangle.

    More of it."""
    return width * height


@scalar
def or_else(text: str | None, other: str, suffix: str = "") -> str:
    return (text or other) + suffix


@scalar
def longest(*texts: str) -> int:
    return max(map(len, texts))


@scalar
def picky(number: int) -> int:
    if number > 2:
        raise ValueError("too many")
    return 2**70 if number == 2 else "one" if number == 1 else number


@scalar("DECIMAL(10, 2)")
def doubled(amount: Decimal):
    return amount * 2


@scalar("STRUCT<N INT, NAMES ARRAY<STRING>>", "STRUCT<A INT, B STRING>", name="turned")
def turn(given):
    return {"N": given["A"] + 1, "NAMES": [given["B"], None]}


@scalar
def later(at: datetime, day: date, hour: time) -> dict[str, datetime]:
    return {"at": at + timedelta(hours=1), "both": datetime.combine(day, hour)}


@scalar
def backwards(items: list[int]) -> list[int]:
    items.reverse()
    return items


@scalar
def flipped(data: bytes, flag: bool) -> bytes:
    return data[::-1] if flag else data


@scalar(name="size_of")
def size_of_text(text: str) -> str:
    return f"{len(text)} letters"


@scalar(name="size_of")
def size_of_list(items: list[str]) -> str:
    return f"{len(items)} items"


@table
def letters(text: str) -> Iterator[str]:
    yield from text


@aggregate
class Spread:
    """Largest less smallest."""

    start = (None, None)

    @staticmethod
    def add(state: tuple[int | None, int | None], value: int) -> tuple[int | None, int | None]:
        low, high = state
        return (value if low is None else min(low, value), value if high is None else max(high, value))

    @staticmethod
    def merge(left, right):
        both = [part for state in (left, right) for part in state if part is not None]
        return (min(both), max(both)) if both else (None, None)

    @staticmethod
    def result(state) -> int | None:
        return None if state[0] is None else state[1] - state[0]


@aggregate(state="STRUCT<N BIGINT, TOTAL BIGINT>")
class Weighed:
    start = {"N": 0, "TOTAL": 0}

    @staticmethod
    def add(state, value: int, weight: int | None):
        state["N"] += 1
        state["TOTAL"] += value * (10 if weight is None else weight)
        return state

    @staticmethod
    def undo(state, value: int, weight: int | None):
        return {"N": state["N"] - 1, "TOTAL": state["TOTAL"] - value * (10 if weight is None else weight)}

    @staticmethod
    def result(state) -> str:
        return f"{state['N']}:{state['TOTAL']}"


@aggregate
class Gathered:
    start = []

    @staticmethod
    def add(items: list[int], value: int) -> list[int]:
        items.append(value)
        if value != 99:
            return items
'''
SETUP = "CREATE STREAM s (k STRING KEY, n INT, t STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
ONE = "CREATE STREAM one (k STRING KEY, n INT) WITH (KAFKA_TOPIC='one', PARTITIONS=1, VALUE_FORMAT='JSON');" + (
    "INSERT INTO one VALUES ('a', 1);"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "own.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture(scope="module")
def known(file: Path) -> Library:
    return load_functions(file)


@pytest.fixture
def engine(log: Log, known: Library, tmp_path: Path) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path / "sql", library=known) as opened:
        list(opened.execute(SETUP))
        yield opened


@pytest.fixture(scope="module")
def one(known: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    """An engine with a stream of one row."""
    folder = tmp_path_factory.mktemp("one")
    with connect(folder / "log") as log, SqlEngine(log, folder / "sql", library=known) as opened:
        list(opened.execute(ONE))
        yield opened


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    return [row for result in engine.execute(text) for row in getattr(result, "rows", ())]


def insert(engine: SqlEngine, *values: tuple[str, int | None, int]) -> None:
    texts = (f"INSERT INTO s (k, n, ROWTIME) VALUES ('{k}', {'NULL' if n is None else n}, {at});" for k, n, at in values)
    list(engine.execute("".join(texts)))


def newest(log: Log, topic: str) -> dict[Any, Any]:
    """Return the last value of each key, without the windows of keys."""
    return {r.key: None if r.value is None else json.loads(r.value) for r in read(log, topic)}


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("area(2, 1.5)", 3.0),
        ("area(2, CAST(NULL AS DOUBLE))", None),
        ("or_else(CAST(NULL AS STRING), 'x')", "x"),
        ("or_else('a', 'x', '!')", "a!"),
        ("or_else('a', CAST(NULL AS STRING))", None),
        ("longest('a', 'bcd', 'ef')", 3),
        ("CAST(doubled(1.25) AS STRING)", "2.50"),
        ("CAST(doubled(3) AS STRING)", "6.00"),
        ("doubled(1.2525)", None),
        ("turned(STRUCT(a := n, b := 'x'))->n", 2),
        ("turned(STRUCT(a := n, b := 'x'))->names", ["x", None]),
        ("CAST(later(FROM_UNIXTIME(0), CAST('2024-02-29' AS DATE), CAST('10:30:00' AS TIME))['both'] AS STRING)",
         "2024-02-29T10:30:00.000"),
        ("UNIX_TIMESTAMP(later(FROM_UNIXTIME(5), CAST('2024-02-29' AS DATE), CAST('10:30:00' AS TIME))['at'])", 3_600_005),
        ("backwards(ARRAY[1, 2, n + 2])", [3, 2, 1]),
        ("FROM_BYTES(flipped(TO_BYTES('abc', 'utf8'), n = 1), 'utf8')", "cba"),
        ("size_of('abc') + size_of(ARRAY['a', 'b'])", "3 letters2 items"),
    ],
)  # fmt: skip
def test_values_come_as_pythons_and_go_back_as_columns(one: SqlEngine, call: str, shown: object) -> None:
    assert rows(one, f"SELECT {call} AS v FROM one;") == [(shown,)]


def test_a_query_that_stays_calls_them_over_rows(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE STREAM o AS SELECT k, letters(t) AS letter, area(n, n) AS square FROM s WHERE longest(t) > 0;"))
    list(
        engine.execute(
            "INSERT INTO s VALUES ('a', 3, 'xy'); INSERT INTO s VALUES ('b', NULL, 'z'); INSERT INTO s VALUES ('c', 1, NULL);"
        )
    )
    found = until(lambda: len(read(log, "O")) == 3 and read(log, "O"))
    assert [json.loads(record.value) for record in found] == [
        {"LETTER": "x", "SQUARE": 9.0},
        {"LETTER": "y", "SQUARE": 9.0},
        {"LETTER": "z", "SQUARE": None},
    ]


def test_a_function_that_fails_is_null_and_counted_as_one_of_logflumes_own(engine: SqlEngine, log: Log) -> None:
    """It raises, its number is too large, its text is no number; beside a built-in one that fails thrice."""
    list(engine.execute("CREATE STREAM o AS SELECT k, picky(n) AS v FROM s; CREATE STREAM b AS SELECT k, n / 0 AS v FROM s;"))
    insert(engine, ("a", 0, 0), ("b", 1, 1), ("c", 2, 2), ("d", 3, 3), ("e", None, 4))
    until(lambda: len(read(log, "O")) == len(read(log, "B")) == 5)
    assert [json.loads(record.value) for record in read(log, "O")] == [{"V": 0}, *[{"V": None}] * 4]
    own, other = (each.id for each in sorted(engine.catalog.queries.values(), key=lambda q: q.sink, reverse=True))
    status = engine.status()
    assert status[own].dropped.keys() == status[other].dropped.keys()
    assert sum(status[own].dropped.values()) == 3
    assert "picky: TypeError: the result is 'one', expected BIGINT" in str(status[own].left_out)


def test_an_aggregate_keeps_its_state_through_a_restart(log: Log, known: Library, tmp_path: Path) -> None:
    with SqlEngine(log, tmp_path / "sql", library=known) as engine:
        list(engine.execute(SETUP))
        list(engine.execute("CREATE TABLE o AS SELECT k, spread(n) AS v, gathered(n) AS items FROM s GROUP BY k;"))
        insert(engine, ("a", 5, 0), ("a", None, 1), ("a", 9, 2), ("b", 1, 3))
        until(lambda: newest(log, "O") == {b"a": {"V": 4, "ITEMS": [5, 9]}, b"b": {"V": 0, "ITEMS": [1]}})
    with SqlEngine(log, tmp_path / "sql", library=known) as engine:
        insert(engine, ("a", 2, 4), ("b", 99, 5))
        until(lambda: newest(log, "O") == {b"a": {"V": 7, "ITEMS": [5, 9, 2]}, b"b": {"V": 98, "ITEMS": [1]}})
        (status,) = engine.status().values()
        assert sum(status.dropped.values()) == 1, "a state of None where its type allows none: a forgotten return"


def test_an_aggregate_with_undo_works_over_a_table_and_one_without_is_refused(engine: SqlEngine, log: Log) -> None:
    list(
        engine.execute(
            "CREATE TABLE ages (k STRING PRIMARY KEY, g STRING, n INT) WITH (KAFKA_TOPIC='a', PARTITIONS=1, VALUE_FORMAT='JSON');"
        )
    )
    with pytest.raises(StatementError, match="SPREAD"):
        list(engine.execute("CREATE TABLE o AS SELECT g, spread(n) AS v FROM ages GROUP BY g;"))
    list(engine.execute("CREATE TABLE o AS SELECT g, weighed(n, CAST(NULL AS BIGINT)) AS v FROM ages GROUP BY g;"))
    for k, g, n in (("a", "x", 1), ("b", "x", 2), ("a", "y", 4)):
        list(engine.execute(f"INSERT INTO ages VALUES ('{k}', '{g}', {n});"))
    until(lambda: newest(log, "O") == {b"x": {"V": "1:20"}, b"y": {"V": "1:40"}})


def test_an_aggregate_with_merge_works_over_sessions(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE TABLE o AS SELECT k, spread(n) AS v FROM s WINDOW SESSION (10 SECONDS) GROUP BY k;"))
    insert(engine, ("a", 1, 1_000), ("a", 5, 15_000), ("a", 3, 8_000))
    until(lambda: [each["V"] for each in newest(log, "O").values() if each] == [4])


def test_they_are_shown_and_described(one: SqlEngine) -> None:
    shown = {name: (kind, doc) for name, kind, doc in rows(one, "SHOW FUNCTIONS;")}
    assert shown["AREA"] == ("SCALAR", "The area of a rectangle.")
    assert shown["LETTERS"][0] == "TABLE"
    assert shown["SPREAD"] == ("AGGREGATE", "Largest less smallest.")
    assert rows(one, "DESCRIBE FUNCTION or_else;") == [
        ("OR_ELSE(STRING, STRING) -> STRING", ""),
        ("OR_ELSE(STRING, STRING, STRING) -> STRING", ""),
    ]
    with pytest.raises(StatementError, match="does not accept parameters"):
        list(one.execute("SELECT area('x', 'y') FROM one;"))


def test_an_engine_that_has_not_the_function_says_which_and_where_it_comes_from(
    log: Log, engine: SqlEngine, tmp_path: Path
) -> None:
    list(engine.execute("CREATE STREAM o AS SELECT k, area(n, n) AS v FROM s;"))
    with SqlEngine(log, tmp_path / "other") as other:
        (problem,) = other.following.problems
        assert "functions with the name 'AREA'" in problem
        assert "--functions FILE" in problem


def test_a_query_goes_elsewhere_without_the_file(log: Log, engine: SqlEngine, file: Path) -> None:
    """As Spark sends it, to a process that has never seen the file."""
    list(engine.execute("CREATE TABLE o AS SELECT k, spread(n) AS v, MAX(area(n, 2)) AS a FROM s GROUP BY k;"))
    ((query_id, query),) = engine.following.applied.queries.items()
    work = pickled(partial(compile_query, query.planned, application_id(engine.service, query_id)))
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())().application)"
    done = subprocess.run([sys.executable, "-c", code], input=work, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().strip() == engine.application_of(query_id), done.stderr
    call = engine.functions.scalars["AREA"].overloads[0].impl
    assert pickle.loads(pickle.dumps(call))(2.0, 4.0) == 8.0


def test_queries_on_spark_call_them(log: Log, engine: SqlEngine, known: Library, tmp_path: Path) -> None:
    list(engine.execute("SET 'engine' = 'spark'; CREATE TABLE o AS SELECT k, spread(n) AS v FROM s GROUP BY k; UNSET 'engine';"))
    insert(engine, ("a", 5, 0), ("a", 9, 2))
    with driven(log, tmp_path / "spark", functions=known):
        until(lambda: newest(log, "O") == {b"a": {"V": 4}})
        insert(engine, ("a", 1, 3))
        until(lambda: newest(log, "O") == {b"a": {"V": 8}})


def test_case_files_and_lint_take_them(file: Path, known: Library, tmp_path: Path) -> None:
    statements = [
        "CREATE STREAM S (V INT) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');",
        "CREATE STREAM O AS SELECT area(V, 2) AS W FROM S;",
    ]
    case = {
        "name": "area",
        "statements": statements,
        "inputs": [{"topic": "s", "value": {"V": 3}}],
        "outputs": [{"topic": "O", "value": {"W": 6.0}}],
    }
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"tests": [case]}))
    lines: list[str] = []
    assert run_cases([path], functions=file, write=lines.append) == 0
    assert run_cases([path], write=lines.append) == 1
    assert [f.code for f in lint_script("\n".join(statements), functions=known) if f.severity == "error"] == []


HEAD = "from decimal import Decimal\nfrom logflume.sql import aggregate, scalar, table\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:", r"own\.py:3: SyntaxError"),
        ("import no_such_module", r"own\.py:3: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(x: int) -> int:\n    return x", "declares no functions: put @scalar"),
        ("\n@scalar\ndef f(x) -> int:\n    return x", r"own\.py:4: f\(x\) has no type"),
        ("@scalar\ndef f(x: int):\n    return x", "the result of F has no type"),
        ("@scalar\ndef f(x: complex) -> int:\n    return x", r"f\(x\): no type of SQL for <class 'complex'>; expected bool, int"),
        ("@scalar\ndef f(x: Decimal) -> Decimal:\n    return x", "needs its digits: give its type as text"),
        ("@scalar('NUMBER')\ndef f(x: int):\n    return x", "'NUMBER' is no type of SQL"),
        ("@scalar('INT) + (1')\ndef f(x: int):\n    return x", "is no type of SQL"),
        ("@scalar('INT', 'INT', 'INT')\ndef f(x):\n    return x", "f has 1 arguments, found 2 types"),
        ("@scalar\ndef f(*, x: int) -> int:\n    return x", "SQL gives arguments by position"),
        ("@scalar\nasync def f(x: int) -> int:\n    return x", "@scalar is for a plain function"),
        ("@scalar\ndef ucase(x: str) -> str:\n    return x", r"UCASE is the name of a function that comes with.*name='MY_UCASE'"),
        ("@scalar(name='select')\ndef f(x: str) -> str:\n    return x", "cannot be the name of a function in SQL"),
        ("@table\ndef f(x: str) -> str:\n    return x", "the result of F is many rows"),
        ("@scalar(name='G')\ndef f(x: str) -> str:\n    return x\n@table\ndef g(x: str) -> list[str]:\n    return [x]",
         "G is declared as @table and as @scalar"),
        ("@scalar(name='G')\ndef f(x: str) -> str:\n    return x\n@scalar\ndef g(x: str) -> int:\n    return 1",
         "is declared twice with these arguments"),
        ("@aggregate\nclass A:\n    start = 0", "a class with `start` and a static method `add"),
        ("@aggregate\nclass A:\n    start = 'x'\n    def add(state: int, x: int) -> int: ...",
         r"A\.start: the state of A is 'x', expected BIGINT"),
        ("@aggregate\nclass A:\n    start = (0, 0)\n    def add(state: tuple[int, int], x: int): ...", "a static method `result"),
        ("@aggregate\nclass A:\n    start = 0\n    def add(state: Decimal, x: int): ...", "needs its digits"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(HEAD + text)
    with pytest.raises(InvalidInput, match=told):
        load_functions(path)


def test_a_folder_gives_the_functions_of_all_its_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected 1 to"):
        load_functions(tmp_path)
    for name in ("one", "two", "_not"):
        (tmp_path / f"{name}.py").write_text(f"{HEAD}@scalar\ndef f{name}(x: int) -> int:\n    return x")
    known = load_functions(tmp_path)
    assert {"FONE", "FTWO"} <= known.scalars.keys()
    assert "F_NOT" not in known.scalars
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_functions(tmp_path / "none.py")
    (tmp_path / "latin.py").write_bytes(b"# \xff")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load_functions(tmp_path)


def test_what_is_decorated_stays_a_function(file: Path) -> None:
    scope: dict[str, Any] = {"__name__": "own"}
    exec(compile(FUNCTIONS, str(file), "exec", dont_inherit=True), scope)
    assert scope["area"](2.0, 3.0) == 6.0
    assert scope["Spread"].add((None, None), 3) == (3, 3)


def test_annotations_and_texts_mean_the_same_types() -> None:
    assert type_of_hint(dict[str, list[bool]] | None, "x") == (type_of_text("MAP<STRING, ARRAY<BOOLEAN>>"), True)
