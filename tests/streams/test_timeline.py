"""The times of a store's entries by key are those of a plain dict, whatever is put, deleted, forgotten and read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logflume.log.schemas import BIGINT, BYTES, Column
from logflume.streams.operators.timeline import Timeline
from logflume.streams.seams import StoreSpec
from logflume.streams.state.store import Store

KEEP_MS = 150_000
KEYS = st.sampled_from([b"a", b"b"])
TIMES = st.integers(0, 40).map(lambda n: n * 10_000)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put_new", "delete", "sweep", "reopen"]), KEYS, TIMES), max_size=40)


@given(STEPS, TIMES, TIMES)
def test_times_are_those_of_a_model(steps: list[tuple[str, bytes, int]], low: int, high: int) -> None:
    store = Store(StoreSpec("s", (Column("key", BYTES),), (Column("n", BIGINT),)))
    timeline = Timeline(store, KEEP_MS)
    model: dict[tuple[bytes, int], int] = {}
    newest = -1
    for number, (what, key, time) in enumerate(steps):
        if what == "sweep":
            timeline.sweep()
        elif what == "reopen":
            seen = timeline.newest
            timeline = Timeline(store, KEEP_MS)
            timeline.start()
            assert timeline.newest <= seen
            timeline.newest = seen  # the time of a store is kept beside it
        elif what == "delete":
            if time > newest - KEEP_MS:
                newest = max(newest, time)  # a session that became null has been there
                timeline.put(key, time, None, time)
                model.pop((key, time), None)
        elif time > newest - KEEP_MS:  # records for what is not seen any more are late
            newest = max(newest, time)
            is_new = (key, time) not in model
            if what == "put":
                timeline.put(key, time, (number,), time)
            else:
                assert timeline.put_new(key, time, (number,)) is is_new
            model[key, time] = number if what == "put" or is_new else model[key, time]
        for each in (b"a", b"b"):
            alive = sorted(at for k, at in model if k == each and low <= at <= high and at > newest - KEEP_MS)
            assert list(timeline.times(each, low, high)) == alive
            for at in alive:
                entry = timeline.entry(each, at)
                assert entry is not None
                assert entry.state == (model[each, at],)
