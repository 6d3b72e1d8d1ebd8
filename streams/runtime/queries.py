"""Reads of an application's stores while it runs: the partitions that this instance holds, committed entries only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from logflume.log import UnknownName
from logflume.streams.seams import Entry, StoreSpec
from logflume.streams.state import StoreReader
from logflume.streams.state.windows import WINDOW_START_BYTES

_PAGE_ROWS = 1000


class StoreView:
    """A store over all partitions of this instance. Thread-safe; sees what the last task commit of each partition left.

    During a rebalance or restore, partitions that are not ready are missing from `partitions`; reads of them find nothing.
    """

    def __init__(self, spec: StoreSpec, readers: Callable[[], Mapping[int, StoreReader]]) -> None:
        self.spec = spec
        self._readers = readers

    @property
    def partitions(self) -> tuple[int, ...]:
        """Return the partitions that can be read here and now."""
        return tuple(sorted(self._readers()))

    def only(self, partitions: Collection[int]) -> StoreView:
        """Return a view of some partitions, as far as they are here."""
        wanted = frozenset(partitions)
        return StoreView(self.spec, lambda: {n: reader for n, reader in self._readers().items() if n in wanted})

    def get(self, key: bytes, *, window_start_ms: int | None = None) -> Entry | None:
        """Return the entry of an encoded record key (and of a window's start for a window store), None when there is none."""
        full = key if window_start_ms is None else key + window_start_ms.to_bytes(WINDOW_START_BYTES, "big")
        for reader in self._readers().values():
            entry = reader.get(full)
            if entry is not None:
                return entry
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entries of encoded record keys of a store without windows, aligned; None where there is none."""
        found: list[Entry | None] = [None] * len(keys)
        missing = list(range(len(keys)))
        for reader in self._readers().values():
            entries = reader.get_many([keys[place] for place in missing])
            for place, entry in zip(missing, entries, strict=True):
                found[place] = entry
            missing = [place for place, entry in zip(missing, entries, strict=True) if entry is None]
            if not missing:
                break
        return found

    def windows(self, key: bytes) -> list[tuple[int, Entry]]:
        """Return (window start in ms, entry) of the living windows of a record key, oldest first."""
        return [row for reader in self._readers().values() for row in reader.windows(key)]

    def range(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, Entry]]:
        """Yield entries with start <= key < stop over all partitions in key order.

        Read in pages of 1000 per partition: each page is one moment, a long scan is not.
        """
        yield from heapq.merge(*(_rows(reader, start, stop) for reader in self._readers().values()), key=_key)


def _rows(reader: StoreReader, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
    while page := reader.page(start, stop, limit=_PAGE_ROWS):
        yield from page
        start = page[-1][0] + b"\0"


def _key(row: tuple[bytes, Entry]) -> bytes:
    return row[0]


class StoreReaders:
    """The readers of all stores of an engine's tasks; replaced as a whole by the engine's thread, read by any."""

    def __init__(self, specs: Mapping[str, StoreSpec]) -> None:
        self._specs = specs
        self._readers: dict[str, dict[int, StoreReader]] = {}

    def publish(self, readers: dict[str, dict[int, StoreReader]]) -> None:
        """Make these readers (store -> partition -> reader) the current ones."""
        self._readers = readers

    def of(self, store: str) -> Mapping[int, StoreReader]:
        """Return the readers of a store by partition; none for one that there is not."""
        return self._readers.get(store, {})

    def view(self, store: str) -> StoreView:
        """Return a view that follows rebalances. Raises UnknownName (with near matches)."""
        if store not in self._specs:
            raise UnknownName("store", store, self._specs)
        return StoreView(self._specs[store], lambda: self.of(store))
