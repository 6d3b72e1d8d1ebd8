"""A state store of one task: memory first, RocksDB behind (architecture, D6).

Invariants:
- every entry on disk is committed, and `dirty` names every entry in memory that differs from disk;
- an entry that is in memory and not dirty equals the one on disk;
- while `_complete_from` is a window start (0: everything), all entries of windows from there on are in memory, so that a key
  that is absent there needs no look on disk;
- once `columns` is set, the entries in memory are there, and `resident` and `dirty` hold only those that were lent as objects
  since the last `settle`; for a key in both the object counts.
Used by the task's thread only; other threads read committed entries from disk (`reader.py`).
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat, takewhile
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from logflume.log import CorruptLog, InvalidInput
from logflume.log.records import I64, Chunk
from logflume.streams.seams import Entry, State, StoreSpec

from .codec import EntryCodec
from .dirty import Dirty, DirtyColumns, DirtyEntries
from .disk import TaskDb, after_prefix
from .held import held_bytes
from .windows import WINDOW_START_BYTES, SegmentLayout, window_start

if TYPE_CHECKING:
    from .columns import EntryColumns

_LEAST_ENTRY_BYTES = 260
"""Of a small entry as objects."""
_PRELOAD_MAX_ENTRIES = 100_000
_PREFIXES_KEPT = 10_000
_SCAN_FROM_ENTRIES = 10_000
_SAMPLE_ENTRIES = 16
_PUT_TOGETHER = 4096
"""Keys and values made into objects at a time: they stay in the processor's cache."""
_NEVER = 1 << 62


class Store:
    """See the module. `db` None: in memory only (test driver)."""

    def __init__(
        self,
        spec: StoreSpec,
        *,
        db: TaskDb | None = None,
        memory_bytes: int = 256 << 20,
        stream_time_ms: int = -1,
        newest_ms: int = -1,
    ) -> None:
        self._spec = spec
        self._db = db
        self.codec = EntryCodec(spec.columns, spec.classes)
        self.layout = SegmentLayout(spec.window) if spec.window else None
        self.resident: dict[bytes, Entry] = {}
        self.dirty: dict[bytes, State | None] = {}
        self.stream_time_ms = stream_time_ms
        self.newest_ms = newest_ms
        self.expiry_time_ms: int | None = None
        self.memory_bytes = memory_bytes
        self._touched: set[bytes] = set()
        self._prefix = db.prefix(spec.name) if db else b""
        self.disk_key: Callable[[bytes], bytes] = self._segmented_key if self.layout else self._plain_key
        self._segment_prefixes: dict[bytes, bytes] = {}
        self._entry_bytes = 0
        self._expired_segment = 0
        self._expired_in_memory = 0
        self._alive_entries = 0
        self._lent: set[bytes] = set()
        self.columns: EntryColumns | None = None
        self._complete_from = 0 if db is None or db.is_empty(spec.name) else self._first_start_not_on_disk()

    def close(self) -> None:
        """Let go of the entries in memory: a task and its program hold each other, and the store until they are collected."""
        self.resident.clear()
        self.dirty.clear()
        self.columns, self._complete_from = None, _NEVER

    @property
    def spec(self) -> StoreSpec:
        return self._spec

    @property
    def complete_from(self) -> int:
        """The window start from which on every entry is in memory; 0: all of them, also without windows."""
        return self._complete_from

    @property
    def is_resident(self) -> bool:
        """Whether all entries are in `resident`."""
        return self._complete_from == 0 and self.columns is None

    @property
    def has_changes(self) -> bool:
        """Whether entries differ from what is on disk."""
        return bool(self.dirty) or (self.columns is not None and len(self.columns.changed) > 0)

    @property
    def resident_count(self) -> int:
        """The number of entries in memory."""
        return len(self.resident) + (0 if self.columns is None else len(self.columns) - len(self._lent))

    # -- columns ---------------------------------------------------------------------------------------------------------

    def use_columns(self, kernels: ModuleType, *, keeps_before: bool = False, beside_bytes: int = 0) -> EntryColumns:
        """Keep the entries in memory as columns from now on (`kernels`: `streams.kernels.slots`); return them.

        Objects are lent by `load` as before, and `settle` takes back what has become of them. `beside_bytes`: what who asks keeps
        beside each entry. Then all entries that are alive have to be in memory: they are given up at once when they outgrow it.
        """
        if self.columns is None:
            from .columns import EntryColumns

            is_windowed = self.layout is not None
            self.columns = EntryColumns(
                kernels, self._spec.columns, is_windowed=is_windowed, keeps_before=keeps_before, beside_bytes=beside_bytes
            )
        self.settle()
        return self.columns

    def settle(self) -> None:
        """Take lent entries, and those read from disk, into the columns."""
        if self.columns is None or not self.resident:
            return
        resident, lent, dirty = self.resident, self._lent, self.dirty
        before = list(dirty.values())
        self.columns.put(list(dirty), [resident[key] for key in dirty], is_changed=True, before=before)
        fresh = [key for key in resident if key not in lent and key not in dirty]
        self.columns.put(fresh, [resident[key] for key in fresh], is_changed=False)
        resident.clear()
        lent.clear()
        dirty.clear()

    def _lend(self, keys: list[bytes]) -> list[bytes]:
        """Make objects of the entries that are in columns; return the keys that are not."""
        assert self.columns is not None
        slots = self.columns.find(keys)
        there = slots >= 0
        found = [key for key, is_there in zip(keys, there.tolist(), strict=True) if is_there]
        self.resident.update(zip(found, self.columns.entries(slots[there]), strict=True))
        self._lent.update(found)
        return [key for key, is_there in zip(keys, there.tolist(), strict=True) if not is_there]

    # -- reading ---------------------------------------------------------------------------------------------------------

    def load(self, keys: Iterable[bytes]) -> None:
        """Make `resident` complete for these keys (one multi_get for those not in memory; none while all of it is)."""
        if self.is_resident:
            return
        resident, floor = self.resident, self._complete_from
        wanted = keys if isinstance(keys, (set, frozenset)) else set(keys)
        missing = [key for key in wanted if key not in resident]
        if self.columns is None:
            self._touched |= wanted
        elif missing:
            missing = self._lend(missing)
        if floor == 0:
            return
        if self.layout is not None:
            missing = [key for key in missing if window_start(key) < floor]
        if not missing:
            return
        assert self._db is not None
        decode = self.codec.decode
        alive = self.oldest_alive_ms
        for key, data in zip(missing, self._db.get_many([self.disk_key(key) for key in missing]), strict=True):
            if data is not None and (self.layout is None or window_start(key) >= alive):
                resident[key] = decode(data)

    @property
    def oldest_alive_ms(self) -> int:
        """The smallest window start that has not expired; 0 in a store without windows."""
        if self.layout is None:
            return 0
        return self.layout.oldest_alive(self.stream_time_ms if self.expiry_time_ms is None else self.expiry_time_ms)

    def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key, uncommitted changes included; None when absent, deleted or expired."""
        if self.layout is not None and window_start(key) < self.oldest_alive_ms:
            return None
        entry = self.resident.get(key)
        if entry is None:
            self.load((key,))
            entry = self.resident.get(key)
            self.settle()
        return None if entry is None or entry.state is None else entry

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Yield living entries with start <= key < stop in key order, uncommitted changes included.

        The store must not be changed while the iterator is used.
        """
        self.settle()
        if self.columns is not None:
            yield from self._range_of_columns(self.columns, start, stop)
            return
        in_range = (key for key in (self.resident if self._db is None else self.dirty) if _within(key, start, stop))
        ours = [(key, self.resident.get(key)) for key in sorted(in_range)]
        alive = self.oldest_alive_ms
        changed = self.dirty
        stored = ((k, e) for k, e in self.scan_disk(start, stop) if k not in changed) if self._db else iter(())
        for key, entry in heapq.merge(ours, stored, key=_first):
            if entry is not None and entry.state is not None and (self.layout is None or window_start(key) >= alive):
                yield key, entry

    def _range_of_columns(self, columns: EntryColumns, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        slots = columns.changed if self._db else columns.all_slots()
        rows = dict(zip(columns.keys(slots), columns.entries(slots), strict=True))
        stored = ((k, e) for k, e in self.scan_disk(start, stop) if k not in rows) if self._db else iter(())
        ours = sorted((row for row in rows.items() if _within(row[0], start, stop)), key=_first)
        alive = self.oldest_alive_ms
        for key, entry in heapq.merge(ours, stored, key=_first):
            if entry.state is not None and (self.layout is None or window_start(key) >= alive):
                yield key, entry

    def segment_of(self, time_ms: int) -> int:
        """Return the start of the segment of a time in a key."""
        assert self.layout is not None, "only entries by time lie in segments"
        return time_ms - time_ms % self.layout.segment_ms

    def segments(self) -> list[int]:
        """Return the starts of the segments that have entries, committed ones or changes, rising."""
        assert self.layout is not None, "only entries by time lie in segments"
        in_memory = self.dirty if self._db is not None else self.resident
        found = {self.segment_of(start) for start in set(map(window_start, in_memory))}
        if self._db is not None:
            found.update(_segments_of(self._db, self._prefix, self.layout.segment_ms))
        return sorted(found)

    def keys_of_segment(self, segment: int) -> Iterator[bytes]:
        """Yield the keys of committed entries of a segment, of a store in memory of all; expired ones included."""
        assert self.layout is not None, "only entries by time lie in segments"
        if self._db is None:
            end = segment + self.layout.segment_ms
            yield from [key for key in self.resident if segment <= window_start(key) < end]
            return
        head = self._prefix + segment.to_bytes(WINDOW_START_BYTES, "big")
        for disk_key in self._db.scan_keys(head, after_prefix(head)):
            yield disk_key[len(head) :]

    def stored_keys(self) -> Iterator[bytes]:
        """Yield the keys of all committed entries, of a store in memory of all, in no order; expired ones included."""
        if self._db is None:
            yield from list(self.resident)
            return
        for segment in self.segments():
            yield from self.keys_of_segment(segment)

    @property
    def stored_count(self) -> int:
        """About how many entries all stores of the task have on disk; 0 in memory."""
        return 0 if self._db is None else self._db.estimated_keys()

    def read_keys(self, keys: Iterable[bytes], low: int) -> Iterator[tuple[bytes, int]]:
        """Make the committed entries of record keys with a time from `low` on present in memory; yield their keys and times.

        As long as they are on disk, they are found though they have expired: so it is with those in memory.
        """
        assert self.layout is not None, "only entries by time are found so"
        wanted = list(keys)
        if self._db is None or not wanted:
            return
        resident, changed, decode = self.resident, self.dirty, self.codec.decode
        for segment in _segments_of(self._db, self._prefix, self.layout.segment_ms):
            end = segment + self.layout.segment_ms
            if end <= low:
                continue
            head = self._prefix + segment.to_bytes(WINDOW_START_BYTES, "big")
            first, last = (time.to_bytes(WINDOW_START_BYTES, "big") for time in (max(low, segment), end))
            spans = sorted((head + key + first, head + key + last) for key in wanted)
            for number, disk_key, data in self._db.scan_each(spans, after_prefix(head)):
                if len(disk_key) != len(spans[number][0]):
                    continue  # of a longer record key, which lies between
                key = disk_key[len(head) :]
                if key not in resident and key not in changed:
                    resident[key] = decode(data)
                yield key[:-WINDOW_START_BYTES], window_start(key)

    def scan_disk(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Yield committed entries in key order, expired ones included."""
        assert self._db is not None
        return scan_entries(self._db, self._prefix, self.layout, self.codec, start, stop)

    def scan_encoded(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and encoded entry of all that is committed, expired ones included, in the order in which they lie on disk."""
        assert self._db is not None
        head = len(self._prefix) + (WINDOW_START_BYTES if self.layout else 0)
        return ((key[head:], data) for key, data in self._db.scan(self._prefix, after_prefix(self._prefix)))

    # -- task commit -----------------------------------------------------------------------------------------------------

    def encode_dirty(self) -> Dirty:
        """Return all changed entries, encoded, in order of first change."""
        self.settle()
        if self.columns is not None:
            return self.columns.encode(self.columns.unwritten(), self._prefix, self.layout.segment_ms if self.layout else 0)
        keys = list(self.dirty)
        entries = list(map(self.resident.__getitem__, keys))
        values = self.encoded(entries)
        if keys and self._db is not None:
            self._weigh(keys)
        return DirtyEntries(keys, values, [entry.timestamp_ms for entry in entries])

    def encoded(self, entries: Sequence[Entry]) -> list[bytes | None]:
        """Return the bytes of entries, None for deleted ones. Raises InvalidInput: a state cannot be stored; names the store."""
        try:
            return self.codec.encode_all(entries)
        except InvalidInput as error:
            raise InvalidInput(f"store {self._spec.name!r}: {error}") from error

    def put_into(self, batch: Any, entries: Dirty) -> None:
        """Add changed entries to a write batch, and the range delete of segments that have expired."""
        if isinstance(entries, DirtyColumns):
            keys, values = entries.on_disk()
            if entries.has_deleted:
                for key in [key for key, value in zip(keys, values, strict=True) if value is None]:
                    batch.delete(key)
                keys = [key for key, value in zip(keys, values, strict=True) if value is not None]
                values = [value for value in values if value is not None]
            deque(map(batch.put, keys, values), maxlen=0)
        else:
            self._put_objects(batch, entries)
        if self.layout is not None:
            oldest = self.layout.oldest_segment(self.stream_time_ms)
            if oldest > self._expired_segment:
                batch.delete_range(
                    self._prefix + self._expired_segment.to_bytes(8, "big"), self._prefix + oldest.to_bytes(8, "big")
                )
                self._expired_segment = oldest

    def _put_objects(self, batch: Any, entries: Dirty) -> None:
        disk_key, put, prefixes = self.disk_key, batch.put, self._segment_prefixes
        for key, value in zip(entries.keys, entries.values, strict=True):
            prefix = prefixes.get(key[-WINDOW_START_BYTES:])
            if value is None:
                batch.delete(disk_key(key))
            elif prefix is None:
                put(disk_key(key), value)
            else:
                put(prefix + key, value)

    def committed(self, *, deleted: Iterable[bytes] | None = None) -> None:
        """Everything dirty is on disk now: forget deleted entries (found here if not given), and cold ones beyond the setting."""
        resident = self.resident
        if self.columns is not None:
            self.settle()
            self.columns.committed()
            if self._db is not None and self.size_bytes() > self.memory_bytes:
                self._evict_columns(self.columns)
            return
        if deleted is None:
            deleted = [key for key in self.dirty if (entry := resident.get(key)) is not None and entry.state is None]
        for key in deleted:
            resident.pop(key, None)
        self.dirty.clear()
        if len(self._touched) > 2 * len(resident) + 100_000:
            self._touched.clear()
        if self._db is not None and self.size_bytes() > self.memory_bytes:
            self._evict()

    def restored(self, chunk: Chunk, into: Any) -> int:
        """Take what records of the changelog say last into a write batch or sorted file, and out of memory.

        `chunk`: no key is null. They are put in order of disk keys. Returns the newest window's start, -1 without windows.

        Raises InvalidInput, CorruptLog for what this logflume did not write (one record stands for its chunk).
        """
        assert self.columns is None, "a store is restored before its task processes"
        from .order import Items, last_of_keys

        starts, segments = self._window_starts(chunk)
        rows, items = last_of_keys(chunk, segments), Items(chunk)
        for value in chunk.take((chunk.value_sizes >= 0).nonzero()[0][-1:]).values():
            self.codec.decode(cast(bytes, value))
        for head, some in self._by_head(rows, segments):
            for at in range(0, len(some), _PUT_TOGETHER):
                keys, values = items.at(some[at : at + _PUT_TOGETHER])
                for key, value in zip(keys, values, strict=True):
                    if value is None:
                        del into[head + key]
                    else:
                        into[head + key] = value
                if self.resident:
                    deque(map(self.resident.pop, keys, repeat(None)), maxlen=0)
        if self.layout is None:
            self._complete_from = _NEVER
            return -1
        newest_ms = int(starts.max(initial=-1))
        self.newest_ms = max(self.newest_ms, newest_ms)
        self._complete_from = max(self._complete_from, newest_ms + 1)
        return newest_ms

    def _window_starts(self, chunk: Chunk) -> tuple[I64, I64]:
        """Return the windows of the records of a changelog, and the segments those lie in; empty without windows.

        Raises CorruptLog: a key has none.
        """
        import numpy as np

        from .order import window_starts

        if self.layout is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts = window_starts(chunk)
        if (starts < 0).any() or (chunk.key_sizes < WINDOW_START_BYTES).any():
            raise CorruptLog(f"store {self._spec.name!r}: a key of its changelog does not end with the start of a window")
        return starts, starts - starts % self.layout.segment_ms

    def _by_head(self, rows: I64, segments: I64) -> Iterator[tuple[bytes, I64]]:
        """Yield what disk keys begin with, and the rows of those that do; `rows` are in order of disk keys."""
        if self.layout is None:
            yield self._prefix, rows
            return
        ordered = segments[rows]
        changes = (ordered[1:] != ordered[:-1]).nonzero()[0] + 1
        for start, stop in pairwise([0, *changes.tolist(), len(rows)]):
            yield self._prefix + int(ordered[start]).to_bytes(WINDOW_START_BYTES, "big"), rows[start:stop]

    def preload(self, *, max_entries: int = _PRELOAD_MAX_ENTRIES) -> None:
        """Read all entries into memory if they are few, so that `load` is free from then on."""
        if self._db is None or self._complete_from == 0 or self._db.estimated_keys() > max_entries:
            return
        if self._db.estimated_bytes() > self.memory_bytes // 4:
            return
        room = self.memory_bytes // (2 * _LEAST_ENTRY_BYTES)
        found: dict[bytes, Entry] = {}
        for key, entry in self.scan_disk(b"", None):
            found[key] = entry
            if len(found) > min(room, max_entries):
                return
        if self.columns is not None:
            self.settle()
            keys = list(found)
            found = {key: found[key] for key, slot in zip(keys, self.columns.find(keys).tolist(), strict=True) if slot < 0}
        for key, entry in found.items():
            self.resident.setdefault(key, entry)
        self.settle()
        self._complete_from = 0

    def expire(self) -> int:
        """Drop window entries of expired segments from memory (the disk follows with the next commit); return how many.

        It looks at entries only when stream time has entered a new segment, and then, because a dict keeps the order
        of insertion, only at the oldest; at all of them when many have gathered behind one that lives long. From columns
        they go once they are half of all. What has expired and is still there is left out by every read.
        """
        if self.layout is None or self.stream_time_ms < 0:
            return 0
        oldest = self.layout.oldest_segment(self.stream_time_ms)
        if oldest <= self._expired_in_memory:
            return 0
        self._expired_in_memory = oldest
        if self.columns is not None:
            self.settle()
            is_alive = self.columns.window_starts() >= oldest
            return self.columns.keep(is_alive) if 2 * int(is_alive.sum()) <= len(is_alive) else 0
        first = oldest.to_bytes(WINDOW_START_BYTES, "big")
        resident = self.resident
        gone = list(takewhile(lambda key: key[-WINDOW_START_BYTES:] < first, resident))
        if len(resident) - len(gone) > 2 * self._alive_entries + _SCAN_FROM_ENTRIES:
            gone = [key for key in resident if key[-WINDOW_START_BYTES:] < first]
            self._alive_entries = len(resident) - len(gone)
        for key in gone:
            del resident[key]
            self.dirty.pop(key, None)
        return len(gone)

    # -- memory ----------------------------------------------------------------------------------------------------------

    def release(self, keys: Iterable[bytes]) -> None:
        """Forget committed entries in memory that an operator keeps in a form of its own; `load` reads them back."""
        if self._db is None:
            return
        assert self.columns is None, "entries in columns are nobody's own"
        gone = [key for key in keys if key not in self.dirty and self.resident.pop(key, None) is not None]
        if gone:
            self._complete_from = _NEVER if self.layout is None else max(self._complete_from, max(map(window_start, gone)) + 1)

    def size_bytes(self) -> int:
        """Return about how much memory the resident entries take: a few that changed lately stand for all."""
        if self.columns is not None:
            return self.columns.size_bytes()
        tables = sum(map(sys.getsizeof, (self.resident, self.dirty, self._touched)))
        return tables + len(self.resident) * max(self._entry_bytes, _LEAST_ENTRY_BYTES)

    def _weigh(self, changed: list[bytes]) -> None:
        """Note what entries take, by a few of those that changed."""
        sample = changed[:: -(-len(changed) // _SAMPLE_ENTRIES)]
        entries = [self.resident[key] for key in sample]
        found = held_bytes([*sample, *entries, *(entry.timestamp_ms for entry in entries), *(entry.state for entry in entries)])
        self._entry_bytes = max(found // len(sample), self._entry_bytes * 7 // 8)

    def _evict(self) -> None:
        """Drop clean entries down to half of the setting: those not asked for since the last time first, then the oldest."""
        resident = self.resident
        if not resident:
            return
        per_entry = max(1, self.size_bytes() // len(resident))
        surplus = len(resident) - self.memory_bytes // per_entry // 2
        cold = [key for key in resident if key not in self._touched and key not in self.dirty][:surplus]
        if len(cold) < surplus:
            gone = set(cold)
            warm = (key for key in resident if key not in gone and key not in self.dirty)
            cold += [key for key, _ in zip(warm, range(surplus - len(cold)), strict=False)]
        for key in cold:
            del resident[key]
        self._touched.clear()
        if cold:
            self._complete_from = _NEVER if self.layout is None else max(self._complete_from, max(map(window_start, cold)) + 1)

    def _evict_columns(self, columns: EntryColumns) -> None:
        """Drop slots down to half of the setting, those not used since the last time first, then the oldest; or all of them."""
        if columns.is_whole:
            self.columns, dropped = None, columns.window_starts()
        else:
            dropped = columns.evict(len(columns) * self.memory_bytes // columns.size_bytes() // 2)
        if len(dropped):
            self._complete_from = _NEVER if self.layout is None else max(self._complete_from, int(dropped.max()) + 1)

    def _first_start_not_on_disk(self) -> int:
        """Return the start of the first segment after all that is on disk (plain stores: never)."""
        if self.layout is None:
            return _NEVER
        assert self._db is not None
        segment_ms = self.layout.segment_ms
        return max(_segments_of(self._db, self._prefix, segment_ms), default=0) + segment_ms

    def _plain_key(self, key: bytes) -> bytes:
        return self._prefix + key

    def _segmented_key(self, key: bytes) -> bytes:
        start = key[-WINDOW_START_BYTES:]
        prefix = self._segment_prefixes.get(start)
        if prefix is None:
            assert self.layout is not None
            if len(self._segment_prefixes) >= _PREFIXES_KEPT:
                self._segment_prefixes.clear()
            prefix = self._prefix + self.layout.segment(key).to_bytes(WINDOW_START_BYTES, "big")
            self._segment_prefixes[start] = prefix
        return prefix + key


def scan_entries(
    db: TaskDb, prefix: bytes, layout: SegmentLayout | None, codec: EntryCodec, start: bytes, stop: bytes | None
) -> Iterator[tuple[bytes, Entry]]:
    """Yield the entries on disk of one store with start <= key < stop, in key order (segments merged)."""
    if layout is None:
        yield from _scan_part(db, prefix, codec, start, stop)
        return
    segments = _segments_of(db, prefix, layout.segment_ms)
    parts = [_scan_part(db, prefix + segment.to_bytes(WINDOW_START_BYTES, "big"), codec, start, stop) for segment in segments]
    yield from heapq.merge(*parts, key=_first)


def _segments_of(db: TaskDb, prefix: bytes, segment_ms: int) -> list[int]:
    """Return the starts of the segments that have entries on disk, rising."""
    found, cursor, end = list[int](), prefix, after_prefix(prefix)
    while (hit := next(db.scan_keys(cursor, end), None)) is not None:
        found.append(int.from_bytes(hit[len(prefix) : len(prefix) + WINDOW_START_BYTES], "big"))
        cursor = prefix + (found[-1] + segment_ms).to_bytes(WINDOW_START_BYTES, "big")
    return found


def _scan_part(db: TaskDb, prefix: bytes, codec: EntryCodec, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
    end = after_prefix(prefix) if stop is None else prefix + stop
    for disk_key, data in db.scan(prefix + start, end):
        yield disk_key[len(prefix) :], codec.decode(data)


def _within(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return key >= start and (stop is None or key < stop)


def _first(pair: tuple[bytes, Entry | None]) -> bytes:
    return pair[0]
