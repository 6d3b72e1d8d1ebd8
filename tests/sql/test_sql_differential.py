"""Expressions computed two ways: by the generated code of a topology, and by walking the bound tree. They must agree."""

from __future__ import annotations

import json
import math
import pickle
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, Column, FormatSpec, array, decimal, serde
from logflume.sql import plan as p
from logflume.sql.binding.context import Context
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.errors import StatementError
from logflume.sql.evaluate import evaluate
from logflume.sql.parser import parse_statement
from logflume.sql.planner import plan_push, plan_query
from logflume.sql.topology import build_topology
from logflume.streams.expr import Side
from logflume.streams.testing import TopologyTestDriver

COLUMNS = (
    Column("I", INTEGER),
    Column("L", BIGINT),
    Column("D", DOUBLE),
    Column("X", decimal(6, 2)),
    Column("S", STRING),
    Column("T", STRING),
    Column("B", BOOLEAN),
    Column("A", array(INTEGER)),
)
SOURCE = SourceInfo("R", False, "r", (Column("K", STRING),), COLUMNS, FormatSpec("KAFKA"), FormatSpec("JSON"))
CONTEXT = Context(Catalog(sources={"R": SOURCE}))

values = st.fixed_dictionaries(
    {
        "I": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
        "L": st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        "D": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 0.5, -2.5]),
        "X": st.none() | st.decimals(Decimal("-9999.99"), Decimal("9999.99"), places=2),
        "S": st.none() | st.text("aB1 .%_", max_size=5) | st.sampled_from(["12", "-3.50", "true", "2020-01-02"]),
        "T": st.none() | st.sampled_from(["a", "B", "12", "%"]),
        "B": st.none() | st.booleans(),
        "A": st.none() | st.lists(st.none() | st.integers(-3, 3), max_size=3),
    }
)

numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["I", "L", "D", "X", "0", "1", "-2", "2147483647", "9223372036854775807", "0.5", "1.25", "2E0"]),
        st.tuples(numbers, st.sampled_from("+-*/%"), numbers).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["ABS", "CEIL", "FLOOR", "ROUND", "SIGN", "TRUNC"]), numbers).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(numbers, st.sampled_from(["INTEGER", "BIGINT", "DOUBLE", "DECIMAL(12, 3)"])).map(
            lambda t: f"CAST({t[0]} AS {t[1]})"
        ),
        texts.map(lambda t: f"CAST({t} AS BIGINT)"),
        texts.map(lambda t: f"LEN({t})"),
        st.tuples(numbers, numbers).map(lambda t: f"COALESCE({t[0]}, {t[1]})"),
        st.tuples(conditions, numbers).map(lambda t: f"CASE WHEN {t[0]} THEN {t[1]} END"),
        numbers.map(lambda n: f"A[CAST({n} AS INTEGER)]"),
        st.just("REDUCE(A, 0, (s, x) => s + x)"),
        numbers.map(lambda n: f"(- {n})"),
    )
)
texts = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["S", "T", "'x'", "''"]),
        st.tuples(texts, texts).map(lambda t: f"({t[0]} + {t[1]})"),
        st.tuples(texts, texts).map(lambda t: f"({t[0]} || {t[1]})"),
        st.tuples(st.sampled_from(["UCASE", "LCASE", "TRIM", "INITCAP"]), texts).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(texts, numbers).map(lambda t: f"SUBSTRING({t[0]}, CAST({t[1]} AS INTEGER))"),
        numbers.map(lambda n: f"CAST({n} AS STRING)"),
    )
)
conditions = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["B", "TRUE", "(S IS NULL)"]),
        st.tuples(numbers, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(texts, st.sampled_from(["=", "<", "LIKE", "IS DISTINCT FROM"]), texts).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(conditions, st.sampled_from(["AND", "OR"]), conditions).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        conditions.map(lambda c: f"(NOT {c})"),
        st.tuples(numbers, numbers).map(lambda t: f"({t[0]} IN ({t[1]}, 1))"),
        numbers.map(lambda n: f"({n} BETWEEN -1 AND 2)"),
    )
)


def bound(text: str) -> p.QueryPlan | None:
    statement = parse_statement(f"SELECT {text} AS R FROM R EMIT CHANGES")
    try:
        return plan_push(statement.query, CONTEXT, query_id="Q")  # type: ignore[union-attr]
    except StatementError:
        return None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b and (not isinstance(a, Decimal) or a.as_tuple() == b.as_tuple())


def by_tree(plan: p.QueryPlan, row: dict[str, Any]) -> Any:
    assert isinstance(plan.root, p.Select)
    cells = {(Side.VALUE, name): value for name, value in row.items()} | {(Side.KEY, "K"): None}
    try:
        return evaluate(plan.root.columns[0][1], cells)
    except (ArithmeticError, ValueError):
        return None


def by_topology(plan: p.QueryPlan, rows: list[dict[str, Any]]) -> list[Any]:
    found: list[Any] = []
    driver = TopologyTestDriver(build_topology(plan, watch=lambda key, value, time: found.append(value[0])))
    encode = serde(FormatSpec("JSON"), COLUMNS).encode
    for row in rows:
        driver.process("r", None, encode(tuple(row[c.name] for c in COLUMNS)), 0)
    return found


@settings(max_examples=120, deadline=None)
@given(st.one_of(numbers, texts, conditions), st.lists(values, min_size=1, max_size=4))
def test_both_ways_agree(text: str, rows: list[dict[str, Any]]) -> None:
    plan = bound(text)
    if plan is None:
        return
    expected = [by_tree(plan, row) for row in rows]
    for row, a, b in zip(rows, expected, by_topology(plan, rows), strict=True):
        assert same(a, b), f"{text} over {row}: tree {a!r}, topology {b!r}"


def test_a_planned_query_pickles_and_runs() -> None:
    sql = "CREATE TABLE O AS SELECT S, COUNT(*) AS N, COLLECT_LIST(REPLACE(T, 'a', 'b')) AS C FROM R GROUP BY S"
    topology = pickle.loads(pickle.dumps(plan_query(sql, pickle.loads(pickle.dumps(CONTEXT.catalog)))))
    driver = TopologyTestDriver(topology)
    for text in ("a", "B"):
        driver.process("r", None, json.dumps({"S": "k", "T": text}).encode(), 0)
    assert [r.value for r in driver.output("O").read()] == [{"N": 1, "C": ["b"]}, {"N": 2, "C": ["b", "B"]}]
