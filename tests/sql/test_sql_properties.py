"""Every property of ksqlDB by its name: it has an effect, or is so anyway, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from logflume.log import connect
from logflume.sql import SqlEngine, StatementError
from logflume.sql.binding.context import Context
from logflume.sql.catalog import Catalog
from logflume.sql.idle_properties import IDLE
from logflume.sql.parser import parse_statement
from logflume.sql.properties import CACHE_NAMES, PROPERTIES, is_known
from logflume.sql.session import Session, session_statement
from logflume.streams.graph import Emit


def set_to(name: str, value: str) -> Session:
    user = Session()
    session_statement(parse_statement(f"SET '{name}'='{value}';"), user)
    return user


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("processing.guarantee", "exactly_once_v2"),
        ("ksql.streams.processing.guarantee", "EXACTLY_ONCE_V2"),
        ("ksql.query.push.v2.enabled", "true"),
        ("ksql.lambdas.enabled", "true"),
        ("ksql.fail.on.deserialization.error", "false"),
        ("cache.max.bytes.buffering", "0"),
        ("ksql.assert.topic.default.timeout.ms", "20"),
    ],
)
def test_what_asks_for_what_is_so_is_taken(name: str, value: str) -> None:
    assert set_to(name, value).properties == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("processing.guarantee", "at_least_once", "does nothing here: every query that is stored runs exactly once. The value"),
        ("ksql.streams.num.stream.threads", "8", "worker processes"),
        ("ksql.streams.rocksdb.config.setter", "a.B", "logflume's own runtime"),
        ("ksql.functions.my_udf.secret", "x", "functions are Python"),
        ("ksql.connect.url", "http://127.0.0.1:8083", "not in a Connect cluster"),
        ("ksql.service.id", "x", "when the server starts"),
        ("ksql.lambdas.enabled", "false", "it is always so here. The value 'true' is taken"),
        ("ksql.query.pull.max.qps", "10", "limits"),
        ("ksql.persistence.default.format.valu", "JSON", "did you mean 'ksql.persistence.default.format.value'"),
        ("cache.max.bytes.buffering", "much", "a number of bytes"),
        ("ksql.assert.schema.default.timeout.ms", "-1", "a number of milliseconds"),
        ("ksql.persistence.wrap.single.values", "maybe", "'true' or 'false'"),
    ],
)
def test_what_changes_nothing_is_refused_with_the_reason(name: str, value: str, reason: str) -> None:
    with pytest.raises(StatementError, match=reason):
        set_to(name, value)


def test_no_property_has_an_effect_and_a_reason_why_it_has_none() -> None:
    assert not PROPERTIES.keys() & IDLE.keys()
    assert all(is_known(name) for name in (*PROPERTIES, *IDLE))
    assert not is_known("ksql.nope")


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_without_a_cache_each_change_is_put_out(name: str) -> None:
    assert Context(Catalog(), properties={name: "0"}).emit is Emit.UPDATE
    assert Context(Catalog(), properties={name: "10000000"}).emit is Emit.COMMIT


def test_all_properties_are_shown_and_one_says_how_long_an_assertion_waits(tmp_path: Path) -> None:
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql", runs_queries=False) as engine:
        (_, shown) = engine.execute("SET 'ksql.assert.topic.default.timeout.ms'='0'; SHOW PROPERTIES;")
        rows = {name: (value, meaning) for name, value, meaning in shown.rows}
        assert rows["ksql.assert.topic.default.timeout.ms"] == ("0", PROPERTIES["ksql.assert.topic.default.timeout.ms"])
        assert rows.keys() >= PROPERTIES.keys()
        with pytest.raises(StatementError, match="does not exist"):
            list(engine.execute("ASSERT TOPIC nope;"))
