"""Reads of a running application's store from any process: whichever instance has a key answers.

What is read is committed: a result can be in its topic a moment before the store shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from logflume.log import InvalidInput, UnknownName
from logflume.log.page_door import Asker
from logflume.log.records import TopicPartition

from .planner import plan, rewrite
from .rows import Reads, StoredRow, StoreRows, Within, key_format_of, stored_nodes
from .runtime import Peers, StorePlace, StoreUnavailable
from .seams import changelog_topic
from .showing import ROWS_MAX, Page, show_live, stored_page
from .state import EntryCodec

if TYPE_CHECKING:
    from logflume.log import Log

    from . import graph as g

_EVERY_MAX_S = 3600


_LOOK_EVERY_S = 0.1


def _tasks(
    log: Log,
    topics: Collection[str],
    store: str,
    timeout_s: float,
    monotonic_s: Callable[[], float],
    sleep: Callable[[float], None],
) -> int:
    """Return how many tasks have a store: the topics that they read are there once the application has begun.

    Raises:
        StoreUnavailable: one is not there in time.
    """
    admin, end_s = log.admin(), monotonic_s() + timeout_s
    while len(found := admin.find_topics(topics)) < len(topics):
        if monotonic_s() >= end_s:
            missing = ", ".join(sorted(set(topics) - set(found)))
            raise StoreUnavailable(
                f"store {store!r} is not there within {timeout_s:g} s: {log.where} has no topic {missing}; does the application "
                "run there?"
            )
        sleep(_LOOK_EVERY_S)
    return max(topic.partitions for topic in found.values())


class StoreQuery(Reads):
    """A store of an application over all of its instances. Made by `App.query`; `close` it, or use it in `with`. One thread.

    Reads raise StoreUnavailable (retriable) when nobody answers for a partition in time.
    """

    def __init__(
        self,
        topology: g.Topology,
        store: str,
        log: Log,
        *,
        timeout_s: float = 10.0,
        acceptable_lag: int | None = None,
        closes_log: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`acceptable_lag`: what a copy may lack that is read where nobody who runs the task answers; see `App.query`.

        Raises:
            UnknownName: no such store. InvalidInput: a lag below 0. StoreUnavailable: the application did not begin in time.
        """
        if acceptable_lag is not None and acceptable_lag < 0:
            raise InvalidInput(f"acceptable_lag must be 0 records or more, not {acceptable_lag}")
        nodes = rewrite(topology).nodes
        kept = stored_nodes(nodes)
        if store not in kept:
            raise UnknownName("store", store, kept)
        planned = plan(topology)
        sub = next(sub for sub in planned.subtopologies if any(spec.name == store for spec in sub.program.stores))
        spec = next(spec for spec in sub.program.stores if spec.name == store)
        admin = log.admin()
        topics = tuple(sorted(sub.shared_topics()))
        is_same_everywhere = store in sub.global_stores()
        count = 1 if is_same_everywhere else _tasks(log, topics, store, timeout_s, monotonic_s, sleep)
        self._codec = EntryCodec(spec.columns, spec.classes)
        place = StorePlace(planned.application, store, topics, count, self._codec, acceptable_lag)
        self._peers = Peers(place, admin, timeout_s=timeout_s, monotonic_s=monotonic_s, sleep=sleep, asker=Asker(log.security))
        self._rows = StoreRows(kept[store], self._peers, key_format_of(nodes, kept[store]))
        self._log, self._closes_log, self._sleep = log, closes_log, sleep
        self._changelog = None if store in sub.table_sources else changelog_topic(planned.application, store)
        self._partitions = count

    def get(self, key: Any, *, as_of: int | None = None) -> Any:
        """Return the row of a key (a `WindowedKey` for windows), None when there is none; of a versioned table also as of a
        time."""
        return self._rows.get(key, as_of=as_of)

    def windows_within(self, key: Any, within: Within) -> list[StoredRow]:
        """Return the rows of a key's windows; see `windows`."""
        return self._rows.windows_within(key, within)

    def within(self, within: Within) -> list[StoredRow]:
        """Return the rows that are asked for; see `rows`."""
        return self._rows.within(within)

    def show(self, *, rows_max: int = ROWS_MAX, every_s: float = 1.0, looks_max: int | None = None) -> None:
        """Show the first rows as a table in a notebook, and what becomes of them, until interrupted (or `looks_max` times).

        Raises:
            InvalidInput: this is no notebook, or a number has no meaning.
        """
        if rows_max < 1 or not 0 < every_s <= _EVERY_MAX_S or (looks_max is not None and looks_max < 1):
            raise InvalidInput(f"show() takes rows_max and looks_max of 1 or more and every_s above 0, at most {_EVERY_MAX_S}")
        show_live(lambda: self._table(rows_max), every_s, self._sleep, looks_max)

    def _repr_html_(self) -> str:
        return self._table(ROWS_MAX).html

    def _table(self, rows_max: int) -> Page:
        rows = self._rows.within(Within(limit=rows_max + 1))
        return stored_page(rows[:rows_max], has_more=len(rows) > rows_max)

    @property
    def lag_records(self) -> int | None:
        """How many records of their inputs the partitions that answered had before them; None: not known."""
        lags = [held.lag_records for held in self._peers.held.values()]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def copy_lags(self) -> dict[int, int]:
        """Return the partitions that a copy has answered for the last time -> how many records it lacked of its changelogs."""
        lags = {number: held.copy_lag_records for number, held in sorted(self._peers.held.items())}
        return {number: lag for number, lag in lags.items() if lag is not None}

    def follow(self) -> Iterator[StoredRow]:
        """Yield all rows, then every change as it is committed (`value` None: the row is gone), for ever.

        Between the two nothing is left out and nothing goes back: changes that were made while the rows were read come once,
        as they stood at the end of it.

        Raises:
            InvalidInput: the store is that of a topic, which tells its changes itself.
        """
        if self._changelog is None:
            raise InvalidInput("the rows of this store are those of a topic: follow that")
        partitions = [TopicPartition(self._changelog, number) for number in range(self._partitions)]
        admin = self._log.admin()
        self._peers.get(b"")
        starts = {each: self._peers.held[each.partition].changelog_offset for each in partitions}
        seen: dict[bytes, bytes] = {}
        for key, entry in self._peers.range(b"", None):
            seen[key] = self._codec.encode(entry) or b""
            row = self._rows.of_entry(key, entry)
            if row is not None:
                yield row
        ends = admin.end_offsets(partitions, read_committed=True)
        yield from self._changes(starts, ends, seen)

    def _changes(
        self, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], seen: dict[bytes, bytes]
    ) -> Iterator[StoredRow]:
        consumer = self._log.consumer(read_committed=True)
        latest: dict[bytes, bytes | None] = {}
        try:
            consumer.assign(list(starts))
            for partition, offset in starts.items():
                consumer.seek(partition, offset)
            while any(consumer.position(partition) < ends[partition] for partition in ends):
                for chunk in consumer.poll(timeout_s=0.2):
                    latest.update(
                        (key, value) for key, value in zip(chunk.keys(), chunk.values(), strict=True) if key is not None
                    )
            for key, newest in latest.items():
                if newest != seen.get(key):
                    yield self._change(key, newest)
            seen.clear()
            while True:
                for chunk in consumer.poll(timeout_s=1.0):
                    for changed, value in zip(chunk.keys(), chunk.values(), strict=True):
                        if changed is not None:
                            yield self._change(changed, value)
        finally:
            consumer.close()

    def _change(self, key: bytes, value: bytes | None) -> StoredRow:
        row = None if value is None else self._rows.of_entry(key, self._codec.decode(value))
        return row if row is not None else StoredRow(self._rows.key_of(key), None, -1)

    def close(self) -> None:
        """Let go of the log. Idempotent."""
        if self._closes_log:
            self._closes_log = False
            self._log.close()

    def __enter__(self) -> StoreQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
