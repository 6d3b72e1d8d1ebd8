"""Every function of the library in the DSL: its example, by name and as a method; overloads, lambdas, values of unknown type."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import msgspec
import pytest

import logflume as lf
from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import BIGINT, DOUBLE, STRING, Column, array, map_of
from logflume.sql.evaluate import evaluate
from logflume.streams import expr as e
from logflume.streams.dsl.binding import Scope, bind
from logflume.streams.functions import Scalar, builtin_library
from logflume.streams.functions.scalar import Unit
from logflume.streams.graph import Schema
from logflume.streams.testing import TopologyTestDriver

SCHEMA = Schema(
    (Column("k", STRING),),
    (
        Column("s", STRING),
        Column("n", BIGINT),
        Column("x", DOUBLE),
        Column("items", array(BIGINT)),
        Column("tags", map_of(STRING, STRING)),
    ),
)
ROW = {"s": "stream", "n": 3, "x": 2.5, "items": [1, None, 3], "tags": {"a": "b"}, "k": "key"}
SCOPE = Scope(SCHEMA, "the input")
EXAMPLES = [f for f in builtin_library().scalars.values() if f.example is not None]


def value_of(deferred: Any) -> Any:
    """Compute a deferred value over ROW."""
    found = {(e.Side.KEY if name == "k" else e.Side.VALUE, name): value for name, value in ROW.items()}
    return evaluate(bind(deferred, SCOPE), found)


@pytest.mark.parametrize("function", EXAMPLES, ids=lambda f: f.name)
def test_an_example_is_true(function: Scalar) -> None:
    assert function.example is not None
    args = [arg.name.lower() if isinstance(arg, Unit) else arg for arg in function.example.args]
    made = getattr(lf.functions, function.name.lower())
    found = value_of(made(*args))
    assert found == function.example.result
    assert type(found) is type(function.example.result)


def test_every_function_is_a_method_and_is_listed() -> None:
    names = {f.name.lower() for f in builtin_library().scalars.values()}
    assert names <= set(dir(lf.functions))
    assert names - {"pi", "random"} <= set(dir(lf.col.s))
    assert {"topk", "collect_list"} <= set(dir(lf.functions))
    assert "substring('stream', -3, 2) is 'ea'" in str(lf.col.s.substring.__doc__)


@pytest.mark.parametrize(
    ("deferred", "expected"),
    [
        (lf.col.s.substring(2, 3), "tre"),
        (lf.col.s.substring(lf.col.n), "ream"),
        (lf.col.s.regexp_extract("r(.)", 1), "e"),
        (lf.col.x.round(), 3),
        (lf.col.n.log(3), 1.0),
        (lf.col.s.upper().lpad(8, "-"), "--STREAM"),
        (lf.col.items.transform(lambda i: i * 2), [2, None, 6]),
        (lf.col.items.filter(lambda i: i > 1), [3]),
        (lf.col.items.reduce(0, lambda total, i: total + i.coalesce(0)), 4),
        (lf.col.tags.transform(lambda k, v: k.ucase(), lambda k, v: v + k), {"A": "ba"}),
        (lf.col.items.length(), 3),
        (lf.functions.greatest(lf.col.n, 7), 7),
        (lf.functions.dateadd("days", 1, datetime.date(1970, 1, 1)), 1),
        (lf.functions.concat_ws("-", lf.col.s, None, lf.col.k), "stream-key"),
    ],
    ids=repr,
)
def test_calls(deferred: Any, expected: Any) -> None:
    assert value_of(deferred) == expected


def test_what_does_not_fit_is_refused_when_it_is_bound() -> None:
    with pytest.raises(InvalidInput, match=r"'substring' does not accept parameters \(BIGINT, INTEGER\)"):
        value_of(lf.col.n.substring(1))
    with pytest.raises(UnknownName, match="substring"):
        lf.col.s.substrin(2)
    with pytest.raises(AttributeError, match="substring"):
        lf.functions.substrin  # noqa: B018
    with pytest.raises(InvalidInput, match="expected a function of 1"):
        value_of(lf.col.items.transform(lambda a, b, c: a))


def test_the_type_of_a_value_may_be_known_at_run_time_only() -> None:
    """Records without a declared class: the form is chosen by the values."""
    app = lf.App("dynamic")
    app.stream("in").select(
        up=lf.col.name.upper(), part=lf.col.name.substring(2, 2), many=lf.col.n.abs(), first=lf.col.items.array_max(),
        city=lf.col.ship.city.lower(), twice=lf.col.items.transform(lambda i: i * 2),
    ).to("out")  # fmt: skip
    driver = TopologyTestDriver(pickle.loads(pickle.dumps(app.topology())))
    driver.input("in").send({"name": "stream", "n": -2, "items": [1, 2], "ship": {"city": "Ulm"}}, key="k")
    (found,) = [record.value for record in driver.output("out").read()]
    assert found == {"up": "STREAM", "part": "tr", "many": 2, "first": 2, "city": "ulm", "twice": [2, 4]}


class Order(msgspec.Struct):
    user: str
    amount: int | None = None


def test_aggregates_of_the_library() -> None:
    app = lf.App("top")
    app.stream("orders", Order).group_by(lf.col.user).aggregate(
        top=lf.functions.topk(lf.col.amount, 2), all=lf.functions.collect_list(lf.col.amount),
        last=lf.functions.latest_by_offset(lf.col.amount), spread=lf.functions.stddev_samp(lf.col.amount),
    ).to_stream().to("out")  # fmt: skip
    driver = TopologyTestDriver(app)
    for amount in (3, None, 5, 4):
        driver.input("orders").send(Order("ann", amount), key="k")
    last = driver.output("out").read()[-1].value
    assert (last["top"], last["all"], last["last"], last["spread"]) == ([5, 4], [3, None, 5, 4], 4, 1.0)
