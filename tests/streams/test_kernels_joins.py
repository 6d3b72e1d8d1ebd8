"""With the kernels and without them: stream-table joins, the table changing in between."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.kernels import kernel_loader
from logflume.streams.seams import Program
from logflume.streams.state.store import Store

from ._kernel_rows import Recorder

numba = pytest.importorskip("numba", reason="the kernels need numba")


class Order(msgspec.Struct):
    n: int
    item: str
    price: float | None = None


class Item(msgspec.Struct):
    name: str | None
    weight: float | None = None
    stock: int | None = None
    ok: bool | None = None


def joined(*, is_left: bool, is_narrow: bool = False) -> Program:
    """orders joined with items; narrow: only one of the table's columns, in an expression."""
    app = lf.App("join")
    orders, items = app.stream("orders", Order, key=str), app.table("items", Item, key=str)
    both = orders.left_join(items) if is_left else orders.join(items)
    (both.select(col.n, heavy=col.weight * 2.0 > col.price) if is_narrow else both).to("out")
    return app.plan().subtopologies[0].program


KEYS = [b"a", b"b", b"item-with-a-longer-key", b"", b"\xff"]
ITEMS = st.one_of(
    st.none(),
    st.sampled_from(
        [b"{", b"[]", b'{"name":1}', b'{"name":"\\u0041"}', b'{"name":"x","stock":1e3}', b'{"name":"x","extra":[1]}']
    ),
    st.builds(
        lambda name, weight, stock, ok: json.dumps({"name": name, "weight": weight, "stock": stock, "ok": ok}).encode(),
        st.one_of(st.none(), st.sampled_from(["", "nut", "bolt", "a longer name of an item", "caf\u00e9", 'q"'])),
        st.one_of(st.none(), st.integers(-400, 400).map(lambda n: n / 4), st.floats(allow_nan=False, allow_infinity=False)),
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 5)),
        st.one_of(st.none(), st.booleans()),
    ),
)
CHANGES = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from(KEYS)), ITEMS, st.sampled_from([5, 5, 5, -1])), max_size=6)
ODD_ORDERS = st.sampled_from([None, b"{", b'{"n":1}', b'{"n":1,"item":"\\n"}', b'{"n":"x","item":"y"}'])


def orders(count: int, keys: list[bytes | None], odd: list[bytes | None], offset: int) -> Chunk:
    values: list[bytes | None] = [b'{"n":%d,"item":"i%d","price":%d.25}' % (n, n, n) for n in range(count)]
    for place, value in enumerate(odd):
        values[place * 17 % count] = value
    chunk = Chunk.from_columns("orders", [keys[n % len(keys)] for n in range(count)], values, [7] * count, partition=1)
    chunk.offsets += offset
    return chunk


def changes(found: list[tuple[bytes | None, bytes | None, int]], offset: int) -> Chunk:
    chunk = Chunk.from_columns("items", [k for k, _, _ in found], [v for _, v, _ in found], [t for *_, t in found], partition=1)
    chunk.offsets += offset
    return chunk


def states(store: Store) -> dict[bytes, Any]:
    return {key: (entry.state, entry.timestamp_ms) for key, entry in store.resident.items()}


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.booleans(), st.booleans(), st.lists(CHANGES, min_size=1, max_size=5), st.lists(ODD_ORDERS, max_size=3),
    st.lists(st.one_of(st.none(), *[st.just(k) for k in [*KEYS, b"missing"]]), min_size=5, max_size=12), st.integers(0, 3),
)  # fmt: skip
def test_with_and_without_kernels_join_the_same_rows_while_the_table_changes(
    is_left: bool, is_narrow: bool, tables: list[Any], odd: list[bytes | None], keys: list[bytes | None], restored_at: int
) -> None:
    assert kernel_loader().load()
    program = joined(is_left=is_left, is_narrow=is_narrow)
    seen = []
    for kernels in (kernel_loader().held_back(), nullcontext()):
        recorder = Recorder()
        store = Store(program.stores[0])
        task = program.bind({store.spec.name: store}, recorder, recorder)
        with kernels:
            for step, found in enumerate(tables):
                table, stream = changes(found, step * 100), orders(90, keys, odd, step * 1000)
                if step == restored_at:
                    task.restore("items", table, 0, len(table))
                else:
                    task.process("items", table, 0, len(table))
                task.process("orders", stream, 2, 90)
                store.committed()
        seen.append((recorder.outputs, recorder.problems, states(store)))
    assert seen[1] == seen[0]


def many_items(first: int, last: int, salt: int) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(b"k%d" % n, b'{"name":"n%d-%d","weight":%d.5,"stock":%d}' % (n, salt, n, n), 5) for n in range(first, last)]


@pytest.mark.parametrize("salt_by_store", [False, True])
def test_rows_come_from_changes_and_from_the_store_alike(salt_by_store: bool) -> None:
    """A store that was filled before the kernels were there is read row by row, as columns where all fit."""
    assert kernel_loader().load()
    program = joined(is_left=False)
    store, recorder = Store(program.stores[0]), Recorder()
    first = changes(many_items(0, 3000, 1), 0)
    task: Any = program.bind({store.spec.name: store}, recorder, recorder)
    with kernel_loader().held_back() if salt_by_store else nullcontext():
        task.process("items", first, 0, len(first))
    keys: list[bytes | None] = [b"k%d" % (n * 7 % 3100) for n in range(3100)]
    task.process("orders", orders(3100, keys, [], 0), 0, 3100)
    task.process("items", changes(many_items(100, 200, 2), 5000), 0, 100)
    task.process("orders", orders(3100, keys, [], 4000), 0, 3100)
    names = [msgspec.json.decode(value)["name"] for _, _, value, *_ in recorder.outputs]
    asked = [n * 7 % 3100 for n in range(3100) if n * 7 % 3100 < 3000]
    assert names == [f"n{n}-1" for n in asked] + [f"n{n}-{2 if 100 <= n < 200 else 1}" for n in asked]
    assert recorder.problems == []


def test_a_table_beyond_the_bound_is_forgotten_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from logflume.streams.operators import table_columns as tables

    monkeypatch.setattr(tables, "MAX_SLOTS", 1500)
    test_rows_come_from_changes_and_from_the_store_alike(True)
    monkeypatch.setattr(tables, "MAX_SLOTS", 1_000_000)
    monkeypatch.setattr(tables, "MAX_ARENA_BYTES", 20_000)
    test_rows_come_from_changes_and_from_the_store_alike(False)
