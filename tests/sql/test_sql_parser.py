"""The parser: what it accepts, how its text form reads back, and that any input ends in a statement or a typed error."""

from __future__ import annotations

import contextlib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark, UnexpectedToken

from logflume.sql import ast
from logflume.sql.errors import SyntaxFault
from logflume.sql.format import expression_text, statement_text
from logflume.sql.parser import accepted, parse_expression, parse_script, parse_statement, syntax_tree
from logflume.sql.parser_cache import cached_parser
from logflume.sql.scripts import is_complete, split_script, substitute

STATEMENTS = [
    "SELECT * FROM S EMIT CHANGES LIMIT 3",
    "SELECT S.*, T.A AS B FROM S LEFT JOIN T ON (S.ID = T.ID) WHERE (A > 3)",
    "SELECT A, COUNT(*) FROM S WINDOW TUMBLING (SIZE 1 HOURS, RETENTION 2 DAYS, GRACE PERIOD 10 MINUTES) GROUP BY A EMIT FINAL",
    "SELECT A FROM S WINDOW HOPPING (SIZE 30 SECONDS, ADVANCE BY 10 SECONDS) GROUP BY A, B HAVING (COUNT(*) > 1)",
    "SELECT A FROM S WINDOW SESSION (30 SECONDS) GROUP BY A",
    "SELECT TRANSFORM(A, X => (X + 1)), REDUCE(M, 0, (S, K, V) => (S + V)) FROM S PARTITION BY A",
    "SELECT B->C->*, M['k'], A[-1], (CASE WHEN (A = 1) THEN 'x' ELSE 'y' END), CAST(A AS DECIMAL(4, 2)) FROM S",
    "SELECT (A LIKE '%x' ESCAPE '!'), (A NOT IN (1, 2)), (A NOT BETWEEN 1 AND 2), (A IS NOT NULL) FROM S",
    "CREATE OR REPLACE STREAM S (ID BIGINT KEY, H BYTES HEADER('k'), A STRUCT<X INT, Y ARRAY<STRING>>) WITH (KAFKA_TOPIC='t')",
    "CREATE SOURCE TABLE IF NOT EXISTS T (ID BIGINT PRIMARY KEY) WITH (KAFKA_TOPIC='t', PARTITIONS=4)",
    "CREATE TABLE T WITH (KEY_FORMAT='JSON') AS SELECT A, COUNT(*) FROM S GROUP BY A",
    "INSERT INTO S (A, `b`) VALUES (1, 'it''s')",
    "INSERT INTO S WITH (QUERY_ID='Q') SELECT * FROM T",
    "INSERT INTO S (A, B) VALUES (1, 'x'), (2, NULL)",
    "SELECT A, COUNT(DISTINCT B, C) FROM S WHERE (A NOT ILIKE '%x' ESCAPE '!') GROUP BY A",
    "SELECT A FROM S WHERE (A > 1) UNION ALL SELECT B FROM T UNION ALL SELECT C FROM S EMIT CHANGES LIMIT 3",
    "SELECT DISTINCT A FROM (SELECT A, B FROM S WHERE (B > 1)) X ORDER BY A DESC NULLS FIRST, (B + 1) LIMIT 3 OFFSET 2",
    "DROP STREAM IF EXISTS S DELETE TOPIC",
    "ALTER TABLE T ADD COLUMN A INT, ADD COLUMN B STRING",
    "CREATE TYPE ADDRESS AS STRUCT<STREET STRING, `no` INT>",
    "TERMINATE ALL",
    "SHOW TOPICS EXTENDED",
    "SET 'a' = 'b'",
    "EXPLAIN SELECT * FROM S",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_text_reads_back_as_the_same_tree(text: str) -> None:
    statement = parse_statement(text)
    again = parse_statement(statement_text(statement))
    assert again == statement
    assert statement_text(again) == statement_text(statement)


def test_names_fold_unless_quoted() -> None:
    statement = parse_statement('SELECT a, "b", `c``d` FROM s')
    assert isinstance(statement, ast.QueryStatement)
    names = [i.expression.name for i in statement.query.select if isinstance(i.expression, ast.Name)]
    assert names == ["A", "b", "c`d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", "(1 + (2 * 3))"),
        ("a || b + c", "(A || (B + C))"),
        ("not a = b and c or d", "(((NOT (A = B)) AND C) OR D)"),
        ("a between 1 and 2 and b", "((A BETWEEN 1 AND 2) AND B)"),
        ("-1", "-1"),
        ("- a", "-A"),
        (".5", ".5"),
        ("1.50e3", "1500.0E0"),
        ("a.b->c[1]->d", "A.B->C[1]->D"),
        ("x is not distinct from null", "(X IS NOT DISTINCT FROM null)"),
    ],
)
def test_precedence(text: str, expected: str) -> None:
    assert expression_text(parse_expression(text)) == expected


# text -> (line, column, part of the message)
FAULTS = {
    "SELCT * FROM s": (1, 1, "Unknown statement 'SELCT'; did you mean SELECT"),
    "SELECT *\nFORM s": (2, 1, "did you mean FROM?"),
    "SELECT a,, b FROM s": (1, 10, "unexpected ','"),
    "CREATE STREM s (a INT)": (1, 8, "did you mean STREAM?"),
    "SELECT a FROM s GROUP BY": (1, 25, "ends too early"),
    "SELECT 'a FROM s": (1, 8, "never closed"),
    "SELECT * FROM s WHER a = 1": (1, 17, "did you mean WHERE?"),
    "CREATE STREAM select (a INT)": (1, 15, "reserved word"),
    "SELECT a FROM s WINDOW TUMBLIN (SIZE 1 HOUR) GROUP BY a": (1, 24, "did you mean TUMBLING?"),
    "SELECT a FROM s WINDOW TUMBLING (SIZE 1 HUOR) GROUP BY a": (1, 39, "unknown time unit HUOR"),
    "SELECT 99999999999999999999 FROM s": (1, 8, "does not fit a BIGINT"),
    "SELECT a & b FROM s": (1, 10, "unexpected character '&'"),
    "SHOW TABLES;;\nSHOW TABELS;": (2, 6, "did you mean TABLES"),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_say_where_and_what(text: str) -> None:
    line, column, message = FAULTS[text]
    with pytest.raises(SyntaxFault) as caught:
        parse_script(text)
    fault = caught.value
    assert message in fault.reason
    assert (fault.line, fault.column) == (line, column)
    assert "^" in fault.pointer()


def test_only_the_failing_statement_is_shown() -> None:
    with pytest.raises(SyntaxFault) as caught:
        parse_script("SHOW TABLES; SELECT * FORM x; SHOW STREAMS;")
    assert caught.value.text == "SELECT * FORM x"


def test_scripts_split_outside_quotes_and_comments() -> None:
    parts = list(split_script("SELECT ';' FROM a; -- no; not here\n/* nor; here */ SELECT \"x;\" FROM b;\nSELECT 1"))
    assert [p.text for p in parts] == ["SELECT ';' FROM a", 'SELECT "x;" FROM b', "SELECT 1"]
    assert [p.line for p in parts] == [1, 2, 3]
    assert [p.is_complete for p in parts] == [True, True, False]
    assert is_complete("SELECT 1;")
    assert not is_complete("SELECT 'a;")


def test_variables_cannot_add_syntax() -> None:
    variables = {"t": "orders", "text": "it's", "evil": "a; DROP TABLE x"}
    assert substitute("SELECT '${text}' FROM ${T} WHERE ${other}", variables) == "SELECT 'it''s' FROM orders WHERE ${other}"
    with pytest.raises(SyntaxFault, match="cannot stand for"):
        substitute("SELECT * FROM ${evil}", variables)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(SyntaxFault, match="nested"):
        parse_statement("SELECT " + "(" * 5000 + "1" + ")" * 5000 + " FROM s")


def test_parser_tables_are_kept_and_a_damaged_file_is_no_harm(tmp_path: Path) -> None:
    built: list[str] = []

    def build(grammar: str) -> Lark:
        built.append(grammar)
        return Lark(grammar, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=True)

    grammar = 'start: "a" WORD\nWORD: /[a-z]+/\n%ignore " "'
    for _ in range(2):
        assert cached_parser(grammar, build, folder=tmp_path).parse("a word").children == ["word"]
    assert len(built) == 1
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"damaged")
    assert cached_parser(grammar, build, folder=tmp_path).parse("a word").children == ["word"]
    kept.chmod(0o666)
    cached_parser(grammar, build, folder=tmp_path)
    assert len(built) == 3


WORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "a",
    "s",
    "(",
    ")",
    ",",
    "1",
    "'x'",
    "*",
    "+",
    "=",
    "AND",
    "CASE",
    "END",
    "=>",
    "->",
    "[",
    "]",
    ";",
    "--",
    "/*",
]


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
def test_any_text_ends_in_statements_or_a_typed_fault(text: str) -> None:
    with contextlib.suppress(SyntaxFault):
        for _, statement in parse_script(text):
            assert isinstance(statement, ast.Node)


names = st.sampled_from(["A", "B", "`c d`", "S.X"])
literals = st.one_of(
    st.integers(0, 2**63 - 1).map(str),
    st.text("ab'", max_size=4).map(lambda t: "'" + t.replace("'", "''") + "'"),
    st.just("NULL"),
)
expressions = st.recursive(
    st.one_of(names, literals),
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from(["+", "*", "||", "=", "<", "AND", "OR"]), e).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(e, e).map(lambda t: f"F({t[0]}, {t[1]})"),
        st.tuples(e, e).map(lambda t: f"(CASE WHEN {t[0]} THEN {t[1]} END)"),
        e.map(lambda t: f"({t} IS NULL)"),
        st.tuples(st.sampled_from(["- ", "-", "+", "NOT "]), e).map(lambda t: f"({t[0]}({t[1]}))"),
        e.map(lambda t: f"CAST({t} AS STRING)"),
        st.lists(e, min_size=1, max_size=3).map(lambda t: f"ARRAY[{', '.join(t)}]"),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(expressions)
def test_random_expressions_read_back(text: str) -> None:
    tree = parse_expression(text)
    assert parse_expression(expression_text(tree)) == tree


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("- -v", "- -V"),
        ("-(-5)", "- -5"),
        ("-(-(-1.5))", "- - -1.5"),
        ("+ +v", "+ +V"),
        ("DECIMAL '150'", "150."),
        ("DECIMAL '+.50'", ".50"),
        ("-DECIMAL '-1.5'", "- -1.5"),
    ],
)
def test_signs_and_decimals_are_kept_as_what_they_are(written: str, kept: str) -> None:
    """Two signs in a row would begin a comment, and digits without a point are an INTEGER."""
    tree = parse_expression(written)
    assert expression_text(tree) == kept
    assert parse_expression(kept) == tree


@pytest.mark.parametrize("text", ["x", "", "NaN", "1e5", "1_000", " 1", "--1", "\u0661"])
def test_text_that_is_no_decimal(text: str) -> None:
    with pytest.raises(SyntaxFault, match="is no DECIMAL; expected digits"):
        parse_statement(f"SELECT DECIMAL '{text}' FROM S")


def test_with_is_filled_in() -> None:
    named = "WITH X AS (SELECT A FROM S), Y AS (SELECT * FROM X) SELECT * FROM Y JOIN X Z ON Z.A = Y.A"
    filled = "SELECT * FROM (SELECT * FROM (SELECT A FROM S) X) Y INNER JOIN (SELECT A FROM S) Z ON (Z.A = Y.A)"
    assert statement_text(parse_statement(named)) == filled
    assert parse_statement(filled) == parse_statement(named)


@pytest.mark.parametrize("literal", ["1E400", "-1E400", "- 1E400"])
def test_a_double_out_of_range_is_shown_with_its_sign(literal: str) -> None:
    with pytest.raises(SyntaxFault, match=f"Number overflows DOUBLE: {literal}"):
        parse_statement(f"SELECT {literal} FROM S")


def test_words_of_ordering_may_be_names() -> None:
    text = "SELECT ORDER, FIRST, LAST, ASC, DESC, NULLS, OFFSET FROM ORDERS ORDER BY ORDER, DESC DESC"
    assert statement_text(parse_statement(text)) == text


def test_the_grammar_stays_small() -> None:
    """Optional clauses beside each other in one rule multiply its forms, and building the parser takes the square of them."""
    grammar = resources.files("logflume.sql").joinpath("grammar.lark").read_text(encoding="utf-8")
    assert len(Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=True).rules) < 1_000


@pytest.mark.parametrize(
    "text", ["SELECT A FROM S LIMIT 3 3", "CREATE TABLE X *", "SELECT (A + ) FROM S", "DROP STREAM IF EXISTS", "SHOW ,"]
)
def test_what_could_come_instead_is_what_the_parser_would_take(text: str) -> None:
    with pytest.raises(UnexpectedToken) as caught:
        syntax_tree(text)
    wanted = {str(token) for token in caught.value.accepts or ()}
    assert wanted
    assert accepted(caught.value) == wanted
