"""What does not exist or does not fit says so, with what to write instead."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

import logflume
import logflume.streams as lf
from logflume.log import InvalidInput, UnknownName
from logflume.streams import col


def app() -> lf.App:
    return lf.App("x")


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: lf.tumblin, "did you mean 'tumbling'"),
        (lambda: logflume.sessoin, "did you mean 'session'"),
        (lambda: app().stream("in").filer, "did you mean 'filter'"),
        (lambda: app().table("in").map_value, "did you mean 'map_values'"),
        (lambda: app().stream("in").group_by(col.a).agregate, "did you mean 'aggregate'"),
        (lambda: app().streams, "did you mean 'stream'"),
        (lambda: col.name.uper(), "did you mean 'upper'"),
    ],
)
def test_an_unknown_attribute_is_an_error_with_near_matches(use: Any, text: str) -> None:
    with pytest.raises(UnknownName, match=text) as caught:
        use()
    assert isinstance(caught.value, AttributeError)


def test_a_field_of_a_nested_object_is_an_attribute() -> None:
    assert repr(col.ship.city) == "col.ship['city']"


def test_what_asks_whether_an_attribute_exists_still_gets_an_answer() -> None:
    stream = app().stream("in")
    assert not hasattr(stream, "suppres")
    assert not hasattr(lf, "nothing_like_it")
    assert repr(copy.copy(col.a)) == "col.a"
    assert repr(pickle.loads(pickle.dumps(col.a + 1))) == "(col.a + 1)"


@pytest.mark.parametrize("table", ["topic", None, 3])
def test_a_join_with_something_else_than_a_table_is_refused(table: Any) -> None:
    with pytest.raises(InvalidInput, match=r"joins a stream or a table, found .* app.table\(...\)"):
        app().stream("in").join(table)


def test_a_merge_with_something_else_than_a_stream_is_refused() -> None:
    with pytest.raises(InvalidInput, match="takes streams, found 'topic'"):
        app().stream("in").merge("topic")  # type: ignore[arg-type]


def test_durations_may_be_timedeltas() -> None:
    assert lf.tumbling(timedelta(minutes=5), grace=timedelta(seconds=1.5)) == lf.tumbling(minutes=5, grace=1500)
    every = timedelta(minutes=1)
    assert lf.hopping(timedelta(minutes=5), advance=every) == lf.hopping(minutes=5, advance=lf.minutes(1))
    with pytest.raises(InvalidInput, match="whole, non-negative number"):
        lf.tumbling(timedelta(microseconds=1))
    for wrong in ("5 minutes", None, True):
        with pytest.raises(InvalidInput, match="or a timedelta, found"):
            lf.tumbling(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: lf.App(5), "name of an application is text, found 5"),  # type: ignore[arg-type]
        (lambda: app().stream(5), "a topic is named by text, found 5"),  # type: ignore[arg-type]
        (lambda: app().stream("in", timestamp="at"), "takes a column expression"),  # type: ignore[arg-type]
        (lambda: app().stream("in").group_by_key().count(name=5), "a name is text"),  # type: ignore[arg-type]
        (lambda: app().stream("in").repartition(5), "takes the name of its internal topic"),  # type: ignore[arg-type]
        (lambda: app().stream("in").repartition("r", partitions=0), "at least 1, found 0"),
        (lambda: app().stream("in").to("out", partitions="3"), "at least 1, found '3'"),  # type: ignore[arg-type]
        (lambda: app().stream("in").group_by_key().cogroup(5), "found 5"),  # type: ignore[arg-type]
        (lambda: app().stream("in").group_by_key().sum(lambda v: v["x"]), "lf.apply"),
        (lambda: (s := app().stream("in")).join(s, within="1m"), "or a timedelta, found '1m'"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(use: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        use()


def test_a_join_takes_timedeltas_and_negative_times() -> None:
    one = app()
    joined = one.stream("a").join(one.stream("b"), before=timedelta(minutes=-1), after=timedelta(minutes=5))
    assert (joined.node.before_ms, joined.node.after_ms) == (-60_000, 300_000)  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"before \+ after >= 0"):
        one.stream("a").join(one.stream("b"), before=timedelta(minutes=-6), after=timedelta(minutes=5))


def test_all_names_of_the_dsl_are_there_without_naming_the_part() -> None:
    names = set(lf.__all__) - {"plan"}
    assert names <= set(logflume.__all__)
    assert all(getattr(logflume, name) is getattr(lf, name) for name in names)
