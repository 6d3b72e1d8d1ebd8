"""Scripts laid out: what it looks like, and that nothing but white space and the case of words changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.sql.layout import format_script
from logflume.sql.parser import parse_script
from logflume.sql.scripts import split_script

PAGES = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
STATEMENTS = [
    part.text
    for page in (PAGES / "sql.md", PAGES / "sql" / "dialect.md")
    for block in BLOCK.findall(page.read_text())
    for part in split_script(block)
    if "${" not in part.text
]
WORDS = re.compile(r"'(?:[^']|'')*'|`[^`]*`|\"[^\"]*\"|--[^\n]*|\s+|[A-Za-z0-9_@.]+|->|:=|=>|<=|>=|<>|!=|\|\||.")


def test_a_query_has_a_line_a_clause() -> None:
    text = (
        "create table if not exists per_user with (kafka_topic='per_user') as select u.name as who, count(*) n, "
        "cast(sum(v.ms) as double)/1000 s from views v left join users u on v.user_id=u.id -- who\n"
        "window tumbling (size 5 minutes, grace period 1 minute) where v.ms between 1 and 100 or v.page like '%shop%' and "
        "not v.is_robot and v.page <> 'a page with a long name' group by u.name having count(*)>1 emit changes;"
    )
    assert format_script(text) == (
        "CREATE TABLE IF NOT EXISTS per_user WITH (kafka_topic = 'per_user') AS\n"
        "SELECT u.name AS who, COUNT(*) n, CAST(SUM(v.ms) AS DOUBLE) / 1000 s\n"
        "FROM views v\n"
        "LEFT JOIN users u ON v.user_id = u.id -- who\n"
        "WINDOW TUMBLING (SIZE 5 MINUTES, GRACE PERIOD 1 MINUTE)\n"
        "WHERE v.ms BETWEEN 1 AND 100\n"
        "  OR v.page LIKE '%shop%' AND NOT v.is_robot AND v.page <> 'a page with a long name'\n"
        "GROUP BY u.name\n"
        "HAVING COUNT(*) > 1\n"
        "EMIT CHANGES;\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("show   tables ;", "SHOW TABLES;\n"),
        ("set 'a'='b';\n\n\n\nshow topics;", "SET 'a' = 'b';\n\nSHOW TOPICS;\n"),
        ("-- first\n/* then */ list queries; -- last\n", "-- first\n/* then */\nLIST QUERIES; -- last\n"),
        ("insert into t(a,b)values(1,-2),(3,+4);", "INSERT INTO t (a, b) VALUES (1, -2), (3, +4);\n"),
        (
            "create type x as struct<a int,b map<string,array<decimal(4,2)>>>;",
            "CREATE TYPE x AS STRUCT<a INT, b MAP<STRING, ARRAY<DECIMAL(4, 2)>>>;\n",
        ),
        ("select a->b[1], transform(x,(k , v)=>k-1) from t;", "SELECT a->b[1], TRANSFORM(x, (k, v) => k - 1)\nFROM t;\n"),
        (
            "create stream `a b`(key int key,\"x\" string header('h'))with(kafka_topic='t',value_format='json');",
            "CREATE STREAM `a b` (key INT KEY, \"x\" STRING HEADER('h'))\nWITH (kafka_topic = 't', value_format = 'json');\n",
        ),
        (
            "select * from t where a < ${least} and b = '${least}' limit ${n};",
            "SELECT *\nFROM t\nWHERE a < ${least} AND b = '${least}'\nLIMIT ${n};\n",
        ),
        ("this is not sql ;\nshow  tables;", "this is not sql;\nSHOW TABLES;\n"),
        ("show tables -- without its end\n;", "SHOW TABLES -- without its end\n;\n"),
        ("", ""),
        ("-- only a word", "-- only a word\n"),
        ("select case a when 1 then 'one' else 'more' end from t", "SELECT CASE a WHEN 1 THEN 'one' ELSE 'more' END\nFROM t\n"),
    ],
)
def test_small_statements(text: str, expected: str) -> None:
    assert format_script(text) == expected
    assert format_script(expected) == expected


def test_what_is_long_is_opened_by_commas_and_conditions() -> None:
    columns = ", ".join(f"column_{i} string" for i in range(12))
    found = format_script(f"create stream s ({columns}) with (kafka_topic='t');").splitlines()
    assert found[0] == "CREATE STREAM s ("
    assert found[1:4] == ["  column_0 STRING,", "  column_1 STRING,", "  column_2 STRING,"]
    assert found[-2:] == [")", "WITH (kafka_topic = 't');"]
    assert max(map(len, found)) <= 100


@settings(max_examples=60, deadline=None)
@given(text=st.sampled_from(STATEMENTS), data=st.data())
def test_white_space_case_and_comments_do_not_matter_and_nothing_is_lost(text: str, data: st.DataObject) -> None:
    words = [w for w in WORDS.findall(text) if not w.isspace() and not w.startswith("--")]
    blanks = data.draw(
        st.lists(st.sampled_from([" ", "\n", "  \n\n ", " -- note\n", " /* note */ "]), min_size=len(words), max_size=len(words))
    )
    mangled = "".join(w + blank for w, blank in zip(words, blanks, strict=True))
    found = format_script(mangled)
    assert [s for _, s in parse_script(found)] == [s for _, s in parse_script(text)]
    assert found.count("note") == mangled.count("note")
    assert format_script(found) == found


def test_all_statements_of_the_pages_are_laid_out() -> None:
    assert len(STATEMENTS) > 50
    for text in STATEMENTS:
        plain = " ".join(text.split())
        assert "--" in text or "'  " in text or format_script(f"{plain};") == format_script(f"{text};"), text
