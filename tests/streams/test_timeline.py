"""What a store's entries are known by is as in a plain dict, whatever is put, deleted, committed, forgotten and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logflume.log.schemas import BIGINT, BYTES, Column
from logflume.streams.graph import TimeWindow
from logflume.streams.operators import timeline as module
from logflume.streams.operators.closing import OpenEntries
from logflume.streams.operators.rows import put_entry
from logflume.streams.operators.timeline import Timeline
from logflume.streams.seams import StoreSpec
from logflume.streams.state.checkpoint import Checkpoint
from logflume.streams.state.disk import after_prefix
from logflume.streams.state.store import Store
from logflume.streams.state.task_state import TaskState

KEEP_MS = 150_000
WAIT_MS = 70_000
SPEC = StoreSpec("s", (Column("key", BYTES),), (Column("n", BIGINT),), TimeWindow(KEEP_MS, 1))
LONG_KEY = b"a" + (60_000).to_bytes(8, "big") + b"b"
"""Lies among the entries of the key `a`."""
KEYS = st.sampled_from([b"a", b"b", LONG_KEY])
TIMES = st.integers(0, 40).map(lambda n: n * 10_000)
STEP = st.tuples(st.sampled_from(["put", "put", "delete", "sweep", "commit", "reopen"]), KEYS, TIMES)


class OnDisk:
    """A store on disk, of which nothing stays in memory that is written, and nothing is read as a task begins."""

    def __init__(self, state: TaskState) -> None:
        self._state = state
        batch, prefix = state.db.batch(), state.db.prefix("s")
        batch.delete_range(prefix, after_prefix(prefix))
        state.db.write(batch, Checkpoint())
        self._begin(-1, -1)

    def _begin(self, stream_time_ms: int, newest_ms: int) -> None:
        self.store = self._state.stores["s"] = Store(
            SPEC, db=self._state.db, memory_bytes=0, stream_time_ms=stream_time_ms, newest_ms=newest_ms
        )

    def commit(self) -> None:
        self._state.commit(self._state.encode_dirty(), Checkpoint())

    def reopen(self) -> None:
        self.commit()
        kept = self._state.db.checkpoint()
        assert kept is not None
        self._begin(kept.store_times_ms["s"], kept.store_newest_ms["s"])


class InMemory:
    """A store without a disk."""

    def __init__(self) -> None:
        self.store = Store(SPEC)

    def commit(self) -> None:
        self.store.committed()

    def reopen(self) -> None:
        self.commit()


Kept = OnDisk | InMemory


@pytest.fixture(scope="module", params=["in memory", "on disk"])
def new_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Kept]]:
    state = TaskState(tmp_path_factory.mktemp("state") / "t", application="a", task="t", specs=(SPEC,))
    yield InMemory if request.param == "in memory" else lambda: OnDisk(state)
    state.close()


@pytest.fixture(scope="module", autouse=True)
def _reads_nothing_at_start() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_READ_AT_START", 0)
        yield


def changed_before_it_is_read(what: str) -> list[tuple[tuple[str, bytes, int], int, int]]:
    """Return steps by which an entry that came after the start changes before those from before the start are read."""
    far = 400_000
    after = [("put", b"a", 50_000), ("commit", b"a", 0), (what, b"a", 50_000)]
    return [
        (("put", b"a", 10_000), 0, far),
        (("reopen", b"a", 0), far, far),
        *((step, far, far) for step in after),
        (("sweep", b"a", 0), 0, far),
    ]


@settings(max_examples=150)
@example(steps=[(("put", b"a", 0), 0, 0), (("put", LONG_KEY, 0), 0, 0), (("commit", b"a", 0), 0, 0)])
@example(steps=changed_before_it_is_read("put"))
@example(steps=changed_before_it_is_read("delete"))
@given(steps=st.lists(st.tuples(STEP, TIMES, TIMES), min_size=1, max_size=40))
def test_times_are_those_of_a_model(new_store: Callable[[], Kept], steps: list[tuple[tuple[str, bytes, int], int, int]]) -> None:
    kept = new_store()
    timeline = Timeline(kept.store, KEEP_MS)
    timeline.start()
    model: dict[tuple[bytes, int], int] = {}
    newest = -1
    for number, ((what, key, time), low, high) in enumerate(steps):
        if what == "sweep":
            timeline.sweep()
        elif what == "commit":
            kept.commit()
        elif what == "reopen":
            kept.reopen()
            timeline = Timeline(kept.store, KEEP_MS)
            timeline.start()
            assert kept.store.newest_ms == newest
        elif time > newest - KEEP_MS:  # records for what is not seen any more are late
            newest = max(newest, time)  # a session that became null has been there, too
            timeline.load([key], time, time)
            timeline.put(key, time, (number,) if what == "put" else None, time)
            if what == "put":
                model[key, time] = number
            else:
                model.pop((key, time), None)
        timeline.load([b"a", b"b", LONG_KEY], low, high)
        for each in (b"a", b"b", LONG_KEY):
            alive = sorted(at for k, at in model if k == each and low <= at <= high and at > newest - KEEP_MS)
            assert list(timeline.times(each, low, high)) == alive
            for at in alive:
                entry = timeline.entry(each, at)
                assert entry is not None
                assert entry.state == (model[each, at],)


@settings(max_examples=150)
@given(steps=st.lists(STEP, min_size=1, max_size=40))
def test_each_entry_closes_once_with_the_commit_that_ends_its_time(
    new_store: Callable[[], Kept], steps: list[tuple[str, bytes, int]]
) -> None:
    kept, clock, closed_to = new_store(), -1, -WAIT_MS - 1
    opened, model = OpenEntries(kept.store, WAIT_MS), dict[bytes, int]()
    opened.start()
    for number, (what, key, time) in enumerate([*steps, ("commit", b"a", 0)]):
        if what in ("put", "delete") and time >= clock - WAIT_MS:
            clock, full = max(clock, time), key + time.to_bytes(8, "big")
            kept.store.stream_time_ms = max(clock, closed_to + WAIT_MS)
            kept.store.load([full])
            put_entry(kept.store, full, (number,) if what == "put" else None, time)
            model[full] = number
            if what == "delete":
                del model[full]
        elif what in ("commit", "reopen"):
            kept.store.expiry_time_ms = max(closed_to + WAIT_MS, -1)
            found = opened.take_entries(clock)
            assert found == sorted(found, key=lambda item: (item[0][-8:], item[0]))
            states = {key: entry.state for key, entry in found}
            assert states == {
                key: (value,) for key, value in model.items() if closed_to <= int.from_bytes(key[-8:], "big") < clock - WAIT_MS
            }
            kept.store.expiry_time_ms, closed_to = None, max(closed_to, clock - WAIT_MS)
            if what == "commit":
                kept.commit()
            else:
                kept.reopen()
                opened = OpenEntries(kept.store, WAIT_MS)
                opened.start()
