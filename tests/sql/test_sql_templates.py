"""A statement made of the tree of another one is the statement that the parser would have made, places and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.parser import _build
from logflume.sql.templates import Templates, _same, scan

SHAPES: tuple[str, ...] = (
    "INSERT INTO s VALUES ({0}, {1})",
    "insert into s (a, b) values ({0}, -{1}), ({2}, - {0}) ;",
    "SELECT * FROM t WHERE k = {0} AND v BETWEEN {1} AND {2} LIMIT 5",
    "SELECT a1, 1.5e3, x || {0} FROM t -- it's {1}\nWHERE k IN ({0}, {1}, {2})",
    "SELECT `1 it's`, ARRAY[{0}, -{1}], MAP('a' := {2}), STRUCT(f := {1}), CASE WHEN k = {0} THEN {1} ELSE {2} END FROM t",
    "INSERT INTO s VALUES (DECIMAL '1.5', {0}, {1} - -{2}, NOT TRUE, NULL)",
    "SELECT k FROM t WHERE v LIKE {0} ESCAPE '!' AND EXTRACTJSONFIELD(v, {1}) = {2} AND WINDOWSTART > {0}",
)
LITERALS = st.one_of(
    st.integers(0, 2**63 - 1).map(str),
    st.tuples(st.integers(0, 999), st.integers(0, 999)).map(lambda two: f"{two[0]}.{two[1]}"),
    st.text(alphabet="ab' -`\"1.\n;é", max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'"),
)


def outcome(parse: Callable[[str], ast.Statement], text: str) -> ast.Statement | str:
    try:
        return parse(text)
    except StatementError as refused:
        return str(refused)


@given(
    st.sampled_from(SHAPES),
    st.lists(st.tuples(LITERALS, LITERALS, LITERALS), min_size=2, max_size=6),
)
def test_what_is_made_is_what_is_parsed(shape: str, rows: list[tuple[str, str, str]]) -> None:
    templates = Templates()
    for row in rows:
        text = shape.format(*row).rstrip(" ;")
        made, parsed = outcome(lambda t: templates.parsed(t, _build), text), outcome(_build, text)
        assert _same(made, parsed) if isinstance(made, ast.Node) else made == parsed


@pytest.mark.parametrize(
    ("first", "second", "is_made"),
    [
        ("INSERT INTO s VALUES ('a', 1)", "INSERT INTO s VALUES ('it''s', 4000000000)", True),
        ("INSERT INTO s VALUES (-1)", "INSERT INTO s VALUES (-0)", False),
        ("INSERT INTO s VALUES (-0)", "INSERT INTO s VALUES (-1)", False),
        ("INSERT INTO s VALUES (1)", "INSERT INTO s VALUES ('1')", False),
        ("SELECT * FROM s LIMIT 5", "SELECT * FROM s LIMIT 6", False),
        ("SELECT * FROM s LIMIT 5", "SELECT * FROM s LIMIT 5", True),
        ("INSERT INTO s VALUES (DECIMAL '1')", "INSERT INTO s VALUES (DECIMAL '2')", False),
        ("INSERT INTO s VALUES (1)", "INSERT INTO s VALUES (99999999999999999999)", False),
        ("CREATE STREAM s AS SELECT * FROM t WHERE a = 1", "CREATE STREAM s AS SELECT * FROM t WHERE a = 2", False),
    ],
)
def test_only_a_literal_that_is_a_node_of_its_own_is_filled_in(first: str, second: str, is_made: bool) -> None:
    templates = Templates()
    templates.parsed(first, _build)
    assert (_found(templates, second) is not None) is is_made


def _found(templates: Templates, text: str) -> ast.Statement | None:
    scanned = scan(text)
    return None if scanned is None else templates.find(scanned)


def test_what_is_kept_is_bounded() -> None:
    templates = Templates()
    for n in range(600):
        templates.parsed(f"SELECT a{n} FROM s WHERE b = 1", _build)
    assert _found(templates, "SELECT a0 FROM s WHERE b = 2") is None
    assert _found(templates, "SELECT a599 FROM s WHERE b = 2") is not None
    assert len(templates._kept) <= 256
