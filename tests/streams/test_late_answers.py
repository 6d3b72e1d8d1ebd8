"""Joins on a foreign key come to the join of their tables, however long questions and answers are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.seams import TaskFunction
from logflume.streams.state.store import Store

LEFT, RIGHT, OUT = "accounts", "users", "out"
Step = tuple[str, str | None, int] | tuple[str, int] | int
"""A change of a left key: its foreign key and a number (-1: it is deleted); of a right key, so too; or which topic's next record
is taken: 0 answers, 1 questions."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", None]), st.integers(-1, 3)),
        st.tuples(st.sampled_from(["x", "y"]), st.integers(-1, 2)),
        st.integers(0, 1),
    ),
    max_size=30,
)


class Account(msgspec.Struct):
    owner: str | None
    amount: int


class User(msgspec.Struct):
    name: str


class Slow:
    """An application whose topics in between are read when it is said so."""

    def __init__(self, *, is_left: bool, store: str | None) -> None:
        app = lf.App("slow")
        accounts, users = app.table(LEFT, Account, key=str), app.table(RIGHT, User, key=str)
        join = accounts.left_join if is_left else accounts.join
        join(users, on=col.owner, prefix="u_", store=store).to_stream().to(OUT)
        self.readers: dict[str, list[tuple[TaskFunction, str]]] = {}
        self.topics: dict[str, str] = {}
        self.on_the_way: dict[str, deque[tuple[Any, Any]]] = {}
        self.results: dict[str, Any] = {}
        for part in app.plan().subtopologies:
            function = part.program.bind({spec.name: Store(spec) for spec in part.program.stores}, self, self)
            for node, topic in part.program.sources.items():
                self.readers.setdefault(topic, []).append((function, node))
            self.topics |= {node: output.topic for node, output in part.outputs.items()}
        self.between = sorted(topic for topic in self.topics.values() if topic != OUT)
        assert len(self.between) == 2, "questions and answers"

    def send(self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], **more: Any) -> None:
        topic = self.topics[node]
        if topic == OUT:
            self.results |= {key.decode(): value for key, value in zip(keys, values, strict=True)}
        else:
            self.on_the_way.setdefault(topic, deque()).extend(zip(keys, values, strict=True))

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.send(node, records.keys(), records.values(), records.timestamps_ms.tolist())

    def report(self, *told: Any) -> None:
        raise AssertionError(told)

    def put(self, topic: str, key: Any, value: Any) -> None:
        for function, node in self.readers[topic]:
            function.process(node, Chunk.from_columns(topic, [key], [value], [1]), 0, 1)
            function.flush()

    def take(self, topic: str) -> bool:
        """Have the next record of a topic in between read; return whether there was one."""
        waiting = self.on_the_way.get(topic)
        if not waiting:
            return False
        self.put(topic, *waiting.popleft())
        return True


@pytest.mark.parametrize("store", [None, "kept"])
@pytest.mark.parametrize("is_left", [False, True], ids=["inner", "left"])
@example(steps=[("x", 1), ("a", "x", 1), 1, 0, ("a", None, 1), ("a", None, 2)])
@example(steps=[("x", 1), ("a", "x", 1), 1, 0, ("a", None, 1), ("a", None, -1)])
@example(steps=[("x", 1), ("a", "x", 1), 1, 0, ("a", None, 1), ("a", "y", 1)])
@example(steps=[("x", 1), ("a", "x", 1), 1, 0, ("a", None, -1), ("a", "y", 1)])
@example(steps=[("x", 1), ("a", "x", 1), 1, 0, ("x", -1), ("a", "x", 2)])
@given(steps=STEPS)
def test_the_last_results_are_the_join_of_the_last_rows(is_left: bool, store: str | None, steps: list[Step]) -> None:
    slow, accounts, users = Slow(is_left=is_left, store=store), dict[str, Account](), dict[str, User]()
    for step in steps:
        match step:
            case int():
                slow.take(slow.between[step])
            case (key, number):
                users.pop(key, None)
                if number >= 0:
                    users[key] = User(f"{key}{number}")
                slow.put(RIGHT, key.encode(), msgspec.json.encode(users[key]) if key in users else None)
            case (key, owner, amount):
                accounts.pop(key, None)
                if amount >= 0:
                    accounts[key] = Account(owner, amount)
                slow.put(LEFT, key.encode(), msgspec.json.encode(accounts[key]) if key in accounts else None)
    while any(slow.take(topic) for topic in slow.between):
        pass
    results = {key: msgspec.json.decode(value) for key, value in slow.results.items() if value is not None}
    assert results == {
        key: {"owner": account.owner, "amount": account.amount, "u_name": users[account.owner].name if has_user else None}
        for key, account in accounts.items()
        if (has_user := account.owner in users) or is_left
    }
