"""Joins of tables, foreign keys, groups of tables and suppress: however many changes are taken at once, they give what single
ones give, errors of callables included."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import groupby
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.schemas import ANY, BYTES, DOUBLE, Column
from logflume.streams import col
from logflume.streams.operators.foreign_key import Subscribers, hasher
from logflume.streams.operators.suppress import Leaving
from logflume.streams.seams import StoreSpec
from logflume.streams.state.store import Store
from logflume.streams.testing import TopologyTestDriver

from .running import kernels

__all__ = ["kernels"]


class Account(msgspec.Struct):
    owner: str
    amount: int
    rate: float | None = None


class User(msgspec.Struct):
    name: str
    country: str | None


def tables(app: lf.App) -> tuple[Any, Any]:
    return app.table("accounts", Account, key=str), app.table("users", User, key=str)


def picky(account: Account | None, user: User | None) -> dict[str, Any]:
    """Refuse every eleventh amount."""
    if account is not None and account.amount % 11 == 0:
        raise ValueError("refused")
    return {"amount": None if account is None else account.amount, "name": None if user is None else user.name}


def inner(app: lf.App) -> Any:
    left, right = tables(app)
    return left.join(right, prefix="u_")


def left_kept(app: lf.App) -> Any:
    left, right = tables(app)
    return left.left_join(right, prefix="u_", store="joined").filter(col.amount > 20)


def outer_by_callable(app: lf.App) -> Any:
    left, right = tables(app)
    return left.outer_join(right, picky).filter(lambda row: row["amount"] != 5)


def right_is_a_join(app: lf.App) -> Any:
    left, right = tables(app)
    others = app.table("others", User, key=str).filter(col.country == "DE")
    return left.left_join(right.outer_join(others, prefix="o_"), prefix="u_")


def foreign_inner(app: lf.App) -> Any:
    left, right = tables(app)
    return left.join(right, on=col.owner, prefix="u_")


def foreign_left_by_callables(app: lf.App) -> Any:
    left, right = tables(app)
    return left.left_join(right, picky, on=lambda account: account.owner if account.amount % 7 else None)


def grouped(app: lf.App) -> Any:
    left, _ = tables(app)
    return left.group_by(col.owner).aggregate(n=lf.count(), total=lf.sum(col.amount), mean=lf.mean(col.rate))


def grouped_at_once(app: lf.App) -> Any:
    left, _ = tables(app)
    changes = lf.aggregate(0, lambda a, row: a + row.amount, subtract=lambda a, row: a - row.amount)
    return left.group_by(lambda row: row.owner, key=str).aggregate(changes, emit="update")


def held_back(app: lf.App) -> Any:
    left, _ = tables(app)
    return left.suppress(lf.until_time_limit(30))


def held_in_bounds(app: lf.App) -> Any:
    left, _ = tables(app)
    return left.suppress(lf.until_time_limit(300, max_records=4))


def held_until_close(app: lf.App) -> Any:
    counts = app.stream("accounts", Account, key=str).group_by_key().window(lf.tumbling(20, grace=10)).count(emit="update")
    return counts.suppress(lf.until_window_closes())


BY_KEY = (foreign_inner, foreign_left_by_callables, grouped, grouped_at_once)
"""Through internal topics: changes of several keys meet in another order, the last of each key counts."""
APPS = (inner, left_kept, outer_by_callable, right_is_a_join, held_back, held_in_bounds, held_until_close, *BY_KEY)


def changes() -> list[tuple[str, str, Any, int]]:
    """Return (topic, key, row, time) in runs of one topic, with deleted rows, nulls and texts of all kinds."""
    numbers, found = Random(1), []
    names = ["a", "b", "ü", "c"]
    for run in range(12):
        topic = ("accounts", "users", "accounts", "others")[run % 4]
        for _ in range(numbers.randrange(1, 24)):
            key, time = numbers.choice(names), run * 40 + numbers.randrange(50)
            row: Any = User(f'n"{numbers.randrange(9)}', numbers.choice(("DE", "FR", None)))
            if topic == "accounts":
                key, row = (
                    f"k{numbers.randrange(12)}",
                    Account(numbers.choice(names), numbers.randrange(60), numbers.choice((None, 1.5))),
                )
                key = numbers.choice((key, *names))
            found.append((topic, key, None if numbers.random() < 0.1 else row, time))
    return found


def outcome(build: Callable[[lf.App], Any], rows: list[tuple[str, str, Any, int]], size: int) -> tuple[list[Any], Any]:
    """Return what an application puts out and what it reports, given up to `size` records of a topic at once."""
    app = lf.App("batches")
    build(app).to_stream().to("out")
    driver = TopologyTestDriver(app, on_problem="skip", goes_together=size > 1, commits_each_record=False)
    for topic, run in groupby(rows, key=lambda row: row[0]):
        records = [(key, row, time) for _, key, row, time in run]
        for at in range(0, len(records), size):
            if topic in driver.inputs:
                driver.input(topic).send_together(records[at : at + size])
        driver.commit()
    return [(r.key, r.value, r.timestamp_ms) for r in driver.output("out").read()], driver.problems


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize("build", APPS)
def test_changes_taken_at_once_give_what_single_ones_give(build: Callable[[lf.App], Any], kernels: str) -> None:
    rows = changes()
    one_by_one, problems = outcome(build, rows, 1)
    assert len(one_by_one) > 10
    for size in (7, 1_000):
        found, others = outcome(build, rows, size)
        if build in BY_KEY:
            assert last_of_each(found) == last_of_each(one_by_one)
        else:
            assert found == one_by_one
            assert others == problems


def test_rows_that_no_foreign_key_names_are_not_remembered() -> None:
    """Else a right table of millions of rows would cost memory beyond all settings, whoever asks for how few of them."""
    subscribers = Subscribers(Store(StoreSpec("asked", (Column("key", BYTES),), (Column("row", BYTES),))))
    subscribers.start()
    subscribers.put_all([b"a", None], [b"left", b"other"], [True, True], [b"mark", b"mark"], [1, 1])
    assert [subscribers.of(b"%d" % n) for n in range(100)] == [[]] * 100
    assert subscribers.of(b"a") == [(b"left", (b"mark",))]
    assert list(subscribers._of) == [b"a"]


def last_of_each(records: list[Any]) -> dict[Any, Any]:
    return {key: value for key, value, _ in records}


def test_a_callable_that_refuses_a_row_is_told_of_once() -> None:
    """Not again when the row is looked at as that before a change."""
    at = [("accounts", "a", Account("a", amount), time) for time, amount in enumerate((11, 12, 22, 5))]
    found, problems = outcome(outer_by_callable, at, 1)
    assert problems == {"callable": 2}
    assert [value["amount"] for _, value, _ in found if value is not None] == [12]


@given(st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=2)) | st.integers(0, 20) | st.none(), max_size=40))
def test_what_is_held_back_leaves_by_time_and_key(steps: list[tuple[int, bytes] | int | None]) -> None:
    leaving, model = Leaving(), list[tuple[int, bytes]]()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            item = (step[0], step[1] + number.to_bytes(2, "big"))
            leaving.add(*item)
            heappush(model, item)
        elif step is None and model:
            assert leaving.pop() == heappop(model)[1]
        elif step is not None:
            assert leaving.take(step) == [heappop(model)[1] for _ in range(sum(time <= step for time, _ in model))]
        assert leaving.count == len(model)
        assert (leaving.count == 0) or leaving.first_ms == model[0][0]


_VALUES = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.text(max_size=2), st.dictionaries(st.text(max_size=1), st.integers(0, 3)),
    st.tuples(st.integers(0, 1)),
)  # fmt: skip


@given(
    st.lists(st.one_of(st.none(), st.tuples(_VALUES, st.one_of(st.none(), st.integers(0, 2), st.booleans(), st.floats(0, 2)))))
)
def test_what_stands_for_a_row_is_the_same_beside_whichever_others(rows: list[tuple[Any, Any] | None]) -> None:
    hashes = hasher((Column("any", ANY), Column("x", DOUBLE)))
    assert hashes(rows) == [hashes([row])[0] for row in rows]
    assert hashes([({"a": 1}, True)]) == hashes([({"a": 1}, 1.0)]) == hashes([({"a": 1}, 1)]) != hashes([({"a": 2}, 1)])
