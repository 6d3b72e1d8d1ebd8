"""Statements from one seed: from the grammar, well typed or not, and good ones after accidents to their words."""

from __future__ import annotations

import random
import re

from logflume.log.schemas import MemoryRegistry
from logflume.sql.binding.context import REGISTRY_URL, Context
from logflume.sql.catalog import Catalog
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_script
from logflume.streams.functions import builtin_library

SOURCES = """
CREATE STREAM S (ID INT KEY, N STRING, V DOUBLE, B BIGINT, D DECIMAL(6, 2), F BOOLEAN, AT TIMESTAMP, DAY DATE, CLOCK TIME,
    RAW BYTES, L ARRAY<INT>, M MAP<STRING, BIGINT>, ST STRUCT<A INT, `b` STRING>) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');
CREATE STREAM R (ID INT KEY, N STRING, V DOUBLE) WITH (KAFKA_TOPIC='r', VALUE_FORMAT='AVRO', KEY_FORMAT='JSON');
CREATE STREAM W (ID STRING KEY, X INT) WITH (KAFKA_TOPIC='w', VALUE_FORMAT='JSON', WINDOW_TYPE='TUMBLING', WINDOW_SIZE='1 HOUR');
CREATE TABLE T (ID INT PRIMARY KEY, NAME STRING, AGE INT) WITH (KAFKA_TOPIC='t', VALUE_FORMAT='JSON');
CREATE TABLE U (K1 INT PRIMARY KEY, K2 STRING PRIMARY KEY, X DOUBLE) WITH (KAFKA_TOPIC='u', FORMAT='JSON');
CREATE TYPE ADDRESS AS STRUCT<STREET STRING, NUMBER INT>;
"""

GOOD = (
    "CREATE STREAM O AS SELECT ID, UCASE(N) AS N, V * 2 + B AS X, CAST(D AS STRING) FROM S WHERE V > 1.5 AND NOT F EMIT CHANGES",
    "CREATE TABLE O WITH (KAFKA_TOPIC='o', VALUE_FORMAT='AVRO') AS SELECT N, COUNT(*) AS C, SUM(V) FROM S "
    "WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 5 MINUTES) GROUP BY N HAVING COUNT(*) > 3 EMIT FINAL",
    "CREATE STREAM O AS SELECT S.ID, R.V FROM S JOIN R WITHIN (1 HOUR, 2 HOURS) GRACE PERIOD 1 DAY ON S.ID = R.ID",
    "CREATE STREAM O AS SELECT S.ID AS ID, T.NAME, AGE FROM S LEFT JOIN T ON S.ID = T.ID PARTITION BY T.NAME",
    "CREATE TABLE O AS SELECT * FROM U LEFT JOIN T ON U.K1 = T.ID",
    "CREATE STREAM O WITH (KEY_FORMAT='JSON') AS SELECT * FROM S PARTITION BY ST->A, L[1] EMIT CHANGES",
    "SELECT N, TRANSFORM(L, x => x + 1), REDUCE(M, 0, (a, k, w) => a + w), ST->* FROM S EMIT CHANGES LIMIT 5",
    "SELECT CASE WHEN V BETWEEN 1 AND 2 THEN 'a' WHEN N LIKE '%x_' ESCAPE '!' THEN 'b' ELSE N END FROM S EMIT CHANGES",
    "SELECT CASE ID WHEN 1 THEN MAP('a' := 1) ELSE NULL END, STRUCT(A := ARRAY[1, 2], B := DECIMAL '1.2') FROM S EMIT CHANGES",
    "SELECT EXPLODE(L), ID IN (1, 2, 3), N IS DISTINCT FROM 'x', -V % 3 FROM S EMIT CHANGES",
    "SELECT ID, LATEST_BY_OFFSET(X, 3), TOPK(X, 2) FROM W GROUP BY ID EMIT CHANGES",
    "SELECT DISTINCT N FROM S WHERE AT > '2024-01-01' AND CLOCK < '12:00' ORDER BY N DESC NULLS FIRST LIMIT 5 OFFSET 2",
    "WITH A AS (SELECT N, SUM(V) AS X FROM S GROUP BY N) SELECT * FROM A WHERE X > 3 ORDER BY X LIMIT 2",
    "SELECT * FROM S JOIN (SELECT ID, NAME FROM T) X ON S.ID = X.ID WHERE V > 1",
    "INSERT INTO S (ID, N, L, M, ST, AT) VALUES (1, 'x', ARRAY[1], MAP('a' := 2), STRUCT(A := 1, `b` := 'y'), '2024-01-01')",
    "SELECT N, COUNT(*) FROM S WINDOW CALENDAR (MONTH, ZONE 'Europe/Berlin', GRACE PERIOD 1 DAY) GROUP BY N EMIT FINAL",
    "INSERT INTO R WITH (QUERY_ID='FILL') SELECT ID, N, V FROM S WHERE N ILIKE 'a%'",
    "CREATE OR REPLACE STREAM S2 (ID INT KEY, A ADDRESS, H BYTES HEADER('h')) WITH (KAFKA_TOPIC='s2', FORMAT='JSON')",
    "CREATE TABLE IF NOT EXISTS T2 (ID INT PRIMARY KEY, X DECIMAL(10, 2)) WITH (KAFKA_TOPIC='t2', VALUE_FORMAT='DELIMITED', "
    "VALUE_DELIMITER='|')",
    "CREATE TYPE IF NOT EXISTS P AS MAP<STRING, ARRAY<STRUCT<X INT, Y DOUBLE>>>",
    "DROP STREAM IF EXISTS S DELETE TOPIC",
    "ALTER TABLE T ADD COLUMN MORE ARRAY<STRING>, ADD LESS INT",
    "DESCRIBE S EXTENDED",
    "EXPLAIN SELECT ID FROM S EMIT CHANGES",
    "SHOW ALL TOPICS EXTENDED",
    "PRINT 's' FROM BEGINNING INTERVAL 2 LIMIT 3",
    "TERMINATE ALL",
    "SET 'auto.offset.reset' = 'earliest'",
    "DEFINE x = 'y'",
    "ASSERT TABLE T (ID INT PRIMARY KEY, NAME STRING) WITH (KAFKA_TOPIC='t')",
    "CREATE SINK CONNECTOR IF NOT EXISTS C WITH ('connector.class' = 'x')",
)
SHORT = (
    "SELECT ID FROM S EMIT CHANGES",
    "SELECT * FROM T WHERE ID = 1",
    "SELECT N, COUNT(*) FROM S GROUP BY N EMIT CHANGES",
    "SELECT S.ID FROM S JOIN T ON S.ID = T.ID EMIT CHANGES",
    "SELECT CAST(V AS INT) FROM S EMIT CHANGES",
    "SELECT L[1], ST->A FROM S EMIT CHANGES",
    "SELECT TRANSFORM(L, x => x) FROM S EMIT CHANGES",
    "SELECT CASE WHEN F THEN 1 END FROM S EMIT CHANGES",
    "SELECT N FROM S WHERE N LIKE 'a%' EMIT CHANGES",
    "SELECT N FROM S WHERE ID NOT IN (1, 2) EMIT CHANGES",
    "INSERT INTO R (ID, V) VALUES (1, 2.5)",
    "CREATE STREAM X (A INT) WITH (KAFKA_TOPIC='x', FORMAT='JSON')",
    "CREATE TABLE O AS SELECT * FROM T",
    "DROP STREAM IF EXISTS S DELETE TOPIC",
    "ALTER TABLE T ADD COLUMN A INT",
    "DESCRIBE S EXTENDED",
    "EXPLAIN SELECT ID FROM S EMIT CHANGES",
    "SHOW ALL TOPICS EXTENDED",
    "PRINT 's' FROM BEGINNING LIMIT 3",
    "TERMINATE ALL",
    "SET 'a' = 'b'",
    "ASSERT TOPIC t TIMEOUT 1 SECONDS",
    "CREATE TYPE P AS ARRAY<INT>",
    "PAUSE q; RESUME q;",
)
"""One of a kind, of few words: those that are tried in great number."""
_TOKEN = re.compile(r"'(?:[^']|'')*'|`[^`]*`|[A-Za-z_][A-Za-z0-9_@]*|\d+(?:\.\d+)?|=>|->|:=|<=|>=|<>|!=|\|\||\s+|.", re.DOTALL)
_STRANGE = (
    *("'", '"', "`", "(", ")", "[", "]", "<", ">", "/*", "--", "\n", "\x00", "é", "😀", "\ud800", "${x}", "ß", "\u00a0", "؟"),
    *(
        "NULL",
        "SELECT",
        "FROM",
        "WINDOW",
        "1e309",
        "99999999999999999999",
        "-9223372036854775808",
        "2147483648",
        "1e-400",
        "0.0",
        ".",
        "1.",
    ),
    *("''", "'%'", "ROWTIME", "WINDOWSTART", "ROWPARTITION", "S", "T", "W", "U", "ID", "S.ID", "X.Y", "*", "S.*", "COUNT(*)"),
    *(
        "JSON",
        "'NONE'",
        "'PROTOBUF'",
        "DECIMAL(99, 98)",
        "DECIMAL(1, 2)",
        "ARRAY<",
        "MAP<INT, INT>",
        "0 DAYS",
        "99999999999 DAYS",
    ),
)
_LITERALS = ("1", "0", "-3", "2147483647", "9223372036854775807", "1.50", "1E3", "'a'", "''", "'2024-01-01'", "TRUE", "NULL")
_LEAVES = {
    "number": (
        "ID",
        "V",
        "B",
        "D",
        "S.ID",
        "ROWTIME",
        "1",
        "0",
        "-3",
        "2147483648",
        "1.50",
        "1E3",
        "ST->A",
        "L[1]",
        "NULL",
        "NOPE",
    ),
    "text": ("N", "S.N", "'a'", "''", "'2024-01-01'", "'%_'", "ST->`b`", "NULL"),
    "condition": ("F", "TRUE", "FALSE", "F IS NULL"),
    "list": ("L", "ARRAY[1, 2]", "ARRAY[V]"),
    "map": ("M", "MAP('a' := 1)"),
    "time": ("AT", "DAY", "CLOCK"),
    "other": ("RAW", "ST", "STRUCT(A := 1)", "NULL"),
}
_KINDS = {"n": "number", "s": "text", "b": "condition", "l": "list", "m": "map", "?": ""}
_SHAPES = {  # each letter alone: an expression of that kind
    "number": (
        *(
            "(n + n)",
            "(n * n)",
            "(n / n)",
            "(n % n)",
            "-n",
            "ABS(n)",
            "ROUND(n, 2)",
            "LEN(s)",
            "CAST(s AS INT)",
            "CAST(n AS DECIMAL(9, 3))",
        ),
        *("CASE WHEN b THEN 1 ELSE 2 END", "m['k']", "l[2]", "ARRAY_LENGTH(l)", "INSTR(s, s)", "GREATEST(n, n)", "IFNULL(n, n)"),
        *(
            "REDUCE(L, 0, (a, x) => a + x)",
            "CASE ID WHEN 1 THEN CAST(n AS DOUBLE) END",
            "UNIX_TIMESTAMP(AT)",
            "COALESCE(n, n, n)",
        ),
    ),
    "text": (
        *(
            "(s || s)",
            "(s + s)",
            "UCASE(s)",
            "SUBSTRING(s, 1, 2)",
            "CAST(? AS STRING)",
            "CASE WHEN b THEN s ELSE s END",
            "CONCAT(s, s, s)",
        ),
        *(
            "REPLACE(s, s, s)",
            "TO_JSON_STRING(?)",
            "FORMAT_TIMESTAMP(AT, 'yyyy')",
            "LPAD(s, 5, 'x')",
            "SPLIT(s, ',')[1]",
            "MASK(s)",
        ),
    ),
    "condition": (
        *(
            "(n = n)",
            "(n < n)",
            "(s <> s)",
            "(b AND b)",
            "(b OR b)",
            "NOT b",
            "(? IS NULL)",
            "(n IN (n, n))",
            "(s LIKE s)",
            "(s IN (s))",
        ),
        *(
            "(n BETWEEN n AND n)",
            "(? IS DISTINCT FROM ?)",
            "ARRAY_CONTAINS(l, n)",
            "(AT > '2024-01-01')",
            "(l = l)",
            "CAST(s AS BOOLEAN)",
        ),
    ),
    "list": ("ARRAY[n, n]", "TRANSFORM(l, x => x + 1)", "FILTER(l, x => b)", "SLICE(l, 1, 2)", "ARRAY_SORT(l)", "MAP_VALUES(m)"),
    "map": ("MAP(s := n, 'k' := n)", "MAP_UNION(m, m)", "TRANSFORM(m, (k, w) => k, (k, w) => w + 1)", "AS_MAP(ARRAY[s], l)"),
    "time": ("CAST(s AS DATE)", "DATEADD(DAYS, n, DAY)", "CAST(AT AS TIME)", "PARSE_TIME(s, 'HH:mm')", "FROM_UNIXTIME(n)"),
    "other": (
        "STRUCT(A := n, B := ?)",
        "ENTRIES(m, TRUE)",
        "ARRAY[?]",
        "ARRAY[s, s]",
        "CAST(s AS BYTES)",
        "EXPLODE(l)",
        "STRUCT(X := ?)->X",
    ),
}
_FUNCTIONS = tuple(sorted(builtin_library().names()))
DEPTH_MAX = 4


def context() -> Context:
    """Return what the statements are planned against."""
    registry = MemoryRegistry()
    found = Context(Catalog(), properties={REGISTRY_URL: registry.location}, fixed_now_ms=0)
    for _, statement in parse_script(SOURCES):
        found = Context(apply_definition(statement, found), properties=found.properties, fixed_now_ms=0)
    return found


def any_statement(rng: random.Random) -> str:
    """Return the text of one statement, right or wrong."""
    kind = rng.random()
    if kind < 0.45:
        return query(rng)
    if kind < 0.5:
        return "".join(rng.choice((*_STRANGE, *_FUNCTIONS, *_LITERALS, " ", " ", " ")) for _ in range(rng.randrange(30)))
    return broken(rng, rng.choice(GOOD))


def broken(rng: random.Random, text: str) -> str:
    """Return a good statement after a few accidents to its words."""
    words = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(words))
        accident = rng.randrange(6)
        if accident == 0 and len(words) > 1:
            del words[at]
        elif accident == 1:
            words.insert(at, words[rng.randrange(len(words))])
        elif accident == 2:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif accident == 3:
            words[at] = expression(rng, DEPTH_MAX - 1)
        elif accident == 4:
            words[at] = rng.choice(_STRANGE)
        else:
            words[at] = rng.choice(_TOKEN.findall(rng.choice(GOOD)))
    return "".join(words)


def query(rng: random.Random) -> str:
    """Return a query over S that is one by its grammar."""
    items = [expression(rng, 0) for _ in range(rng.randrange(1, 4))]
    group = [expression(rng, DEPTH_MAX - 2) for _ in range(rng.randrange(0, 3))] if rng.random() < 0.4 else []
    if group:
        items = [*group, rng.choice(("COUNT(*)", "SUM(V)", "COLLECT_LIST(N)", "LATEST_BY_OFFSET(ST)"))]
    select = ", ".join(item + (f" AS X{n}" if rng.random() < 0.7 else "") for n, item in enumerate(items))
    kind = rng.choice(("", "", "CREATE TABLE O AS " if group else "CREATE STREAM O AS ", "INSERT INTO R "))
    parts = [kind + f"SELECT {'ID, ' if kind and not group else ''}{select} FROM S"]
    if rng.random() < 0.2:
        kind, other = rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN")), rng.choice("RTUWS")
        parts.append(f"{kind} {other} {rng.choice(('', 'WITHIN 1 HOUR '))}ON {expression(rng, 3, 'number')} = {other}.ID")
    if group and rng.random() < 0.4:
        parts.append(
            "WINDOW " + rng.choice(("TUMBLING (SIZE 1 DAY)", "SESSION (5 MINUTES)", "HOPPING (SIZE 3 DAYS, ADVANCE BY 1 DAY)"))
        )
    if rng.random() < 0.4:
        parts.append(f"WHERE {expression(rng, 1, 'condition')}")
    if group:
        parts.append(f"GROUP BY {', '.join(group)}")
        parts += [f"HAVING COUNT(*) > {expression(rng, 3, 'number')}"] if rng.random() < 0.2 else []
    elif rng.random() < 0.2:
        parts.append(f"PARTITION BY {expression(rng, 2)}")
    parts += [rng.choice(("EMIT CHANGES", "EMIT CHANGES LIMIT 3", "EMIT FINAL", ""))]
    return " ".join(parts)


def expression(rng: random.Random, depth: int, kind: str = "") -> str:
    """Return an expression of a kind of values (any: ""), mostly."""
    kind = kind if kind and rng.random() > 0.03 else rng.choice(tuple(_LEAVES))
    if depth >= DEPTH_MAX or rng.random() < 0.2:
        return rng.choice(_LEAVES[kind])

    def inner(match: re.Match[str]) -> str:
        return expression(rng, depth + 1, _KINDS[match.group()])

    if rng.random() < 0.05:
        arguments = ", ".join(expression(rng, depth + 1) for _ in range(rng.randrange(4)))
        return f"{rng.choice(_FUNCTIONS)}({arguments})"
    return re.sub(r"\b[nsblm?]\b|\?", inner, rng.choice(_SHAPES[kind]))
