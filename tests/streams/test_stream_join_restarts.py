"""A join of streams that is committed and opened anew at any place puts out what one does that never was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams.state.store import Store
from tests.streams.running import kernels

__all__ = ["kernels"]


class Order(msgspec.Struct):
    id: int
    note: str | None
    tags: list[str]


class Sink:
    """Keeps what is put out; as `Problems`, counts."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.problems: list[Any] = []

    def send(self, node: str, keys: Any, values: Any, timestamps_ms: Any, **more: Any) -> None:
        self.records += zip(keys, values, timestamps_ms, strict=True)

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.send(node, records.keys(), records.values(), records.timestamps_ms.tolist())

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.problems.append((reason, topic, offset))


def inner(left: Any, right: Any) -> Any:
    return left.join(right, within=lf.milliseconds(8), prefix="r_")


def left(left: Any, right: Any) -> Any:
    return left.left_join(right, within=lf.milliseconds(8), grace=lf.milliseconds(3), prefix="r_")


def outer(left: Any, right: Any) -> Any:
    return left.outer_join(right, within=lf.milliseconds(8), grace=lf.milliseconds(3), prefix="r_")


def itself(left: Any, right: Any) -> Any:
    return left.left_join(left, within=lf.milliseconds(8), grace=lf.milliseconds(3), prefix="r_")


NOTES = st.none() | st.sampled_from(["plain", "été", 'a "b"'])
VALUES = st.builds(lambda i, note: msgspec.json.encode(Order(i, note, ["t"] * (i % 3))), st.integers(0, 9), NOTES)
ROW = b'{"id":0,"note":null,"tags":[]}'
RECORDS = st.tuples(st.sampled_from([b"a", b"b", b"c", None]), VALUES | st.none(), st.integers(0, 80))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]), st.lists(RECORDS, min_size=1, max_size=60), st.sampled_from(["", "commit", "open"])
    ),
    max_size=8,
)


def outcome(build: Callable[[Any, Any], Any], steps: list[Any], *, is_opened: bool) -> tuple[list[Any], list[Any]]:
    app = lf.App("joined")
    build(app.stream("left", Order), app.stream("right", Order)).to("out")
    part = next(part for part in app.plan().subtopologies if "left" in part.program.sources.values() and part.program.stores)
    stores, sink = {spec.name: Store(spec) for spec in part.program.stores}, Sink()
    task = part.program.bind(stores, sink, sink)
    nodes = {topic: node for node, topic in part.program.sources.items()}
    offsets = {"left": 0, "right": 0}
    for topic, rows, then in steps:
        if topic not in nodes:
            continue
        chunk = Chunk.from_columns(topic, [k for k, _, _ in rows], [v for _, v, _ in rows], [t for _, _, t in rows])
        chunk.offsets = chunk.offsets + offsets[topic]
        offsets[topic] += len(rows)
        task.process(nodes[topic], chunk, 0, len(rows))
        if then and is_opened:
            task.flush()
            for store in stores.values():
                store.encode_dirty()
                store.committed()
            if then == "open":
                task = part.program.bind(stores, sink, sink)
    return sink.records, sink.problems


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("build", [inner, left, outer, itself])
@settings(deadline=None, max_examples=20)
@given(STEPS)
@example(
    [  # what waits outlives its block: the time that a null moved lets nobody out
        ("left", [(b"a", ROW, 0), (b"a", None, 21), (b"a", ROW, 0)], "commit"),
        ("left", [(b"a", ROW, 20)], "open"),
        ("left", [(b"a", None, 0), (b"a", ROW, 21)], ""),
    ]
)
def test_a_join_goes_on_where_it_was(build: Callable[[Any, Any], Any], steps: list[Any]) -> None:
    assert outcome(build, steps, is_opened=True) == outcome(build, steps, is_opened=False)
