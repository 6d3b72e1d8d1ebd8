"""What instances ask each other about stores, as data, and how an instance answers from the partitions that it holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from logflume.log import LogflumeError
from logflume.streams.seams import Entry
from logflume.streams.state import StoreReader

PAGE_ROWS = 1000


class Ask(msgspec.Struct, frozen=True):
    """A read of some partitions of a store: the entry at `key`, or with `is_range` a page of those from `key` until `stop`.

    `copy_lag_max`: a copy answers too that lacks at most so many records of its changelogs; None: only who runs the task.
    """

    store: str
    partitions: list[int]
    key: bytes
    is_range: bool = False
    stop: bytes | None = None
    limit: int = PAGE_ROWS
    copy_lag_max: int | None = None


class Held(msgspec.Struct, frozen=True):
    """A partition that was read. `changelog_offset`: the next record of its changelog that was not in the store by then.

    `lag_records`: what of its inputs was not processed yet, None while that is not known. `copy_lag_records`: what a copy lacked
    of its changelogs, None where the task runs.
    """

    partition: int
    stream_time_ms: int
    changelog_offset: int
    lag_records: int | None
    copy_lag_records: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """`rows` are (key, entry as it is on disk). A partition that is not in `held` has moved or is being restored."""

    rows: list[tuple[bytes, bytes]]
    held: list[Held]


Copies = Mapping[int, tuple[StoreReader, int]]
"""Partition -> reader of a copy of it, and what the copy lacks."""


def answer(ask: Ask, readers: Mapping[int, StoreReader], lags: Mapping[int, int | None], copies: Copies) -> Answer:
    """Read what is here of what was asked: where the task runs, else from a copy that lacks little enough."""
    rows: list[tuple[bytes, bytes]] = []
    held: list[Held] = []
    for partition in ask.partitions:
        reader, copy_lag = readers.get(partition), None
        if reader is None and ask.copy_lag_max is not None and partition in copies:
            reader, copy_lag = copies[partition]
        if reader is None or (copy_lag or 0) > (ask.copy_lag_max or 0):
            continue
        try:
            checkpoint = reader.checkpoint()
            found = _read(reader, ask)
        except LogflumeError:
            continue  # it is leaving: whoever takes it over answers
        rows += found
        time_ms = checkpoint.store_times_ms.get(ask.store, -1)
        held.append(Held(partition, time_ms, checkpoint.changelogs.get(ask.store, 0), lags.get(partition), copy_lag))
    return Answer(rows, held)


def _read(reader: StoreReader, ask: Ask) -> list[tuple[bytes, bytes]]:
    encode = reader.codec.encode
    if ask.is_range:
        found: list[tuple[bytes, Entry]] = reader.page(ask.key, ask.stop, limit=min(max(ask.limit, 1), PAGE_ROWS))
    else:
        entry = reader.get(ask.key)
        found = [] if entry is None else [(ask.key, entry)]
    return [(key, data) for key, entry in found if (data := encode(entry)) is not None]
