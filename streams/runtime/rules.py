"""Which records a topic will not take, known before they are sent: a transaction with one of them would be lost. (pure)

What cannot be known here (a rule that changed, a clock that differs) the broker says: it is learnt, and the commit done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from logflume.log.records import Chunk

_BATCH_BYTES = 61
_RECORD_BYTES = 3
"""The header of a batch; attributes and the two deltas of its only record."""
_OVERHEAD_MAX_BYTES = _BATCH_BYTES + _RECORD_BYTES + 4 * 5
"""With the sizes of record, key and value, and the number of headers."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic asks of a record; None: everything is taken."""

    max_bytes: int | None = None
    ahead_max_ms: int | None = None
    behind_max_ms: int | None = None
    needs_key: bool = False

    def refused(self, chunk: Chunk, now_ms: int) -> list[tuple[int, str]]:
        """Return (row, why) of the records that the topic will certainly refuse, in order."""
        found: dict[int, str] = {}
        times = chunk.timestamps_ms
        if self.max_bytes is not None:
            sizes = _too_large(chunk, self.max_bytes)
            found = {row: f"{size} bytes, max.message.bytes is {self.max_bytes}" for row, size in sizes.items()}
        if self.ahead_max_ms is not None:
            _add(
                found,
                times > now_ms + self.ahead_max_ms,
                lambda row: (
                    f"its time {times[row]} is {times[row] - now_ms} ms ahead of the clock, {self.ahead_max_ms} are allowed "
                    "(message.timestamp.after.max.ms)"
                ),
            )
        if self.behind_max_ms is not None:
            _add(
                found,
                times < now_ms - self.behind_max_ms,
                lambda row: (
                    f"its time {times[row]} is {now_ms - times[row]} ms behind the clock, {self.behind_max_ms} are allowed "
                    "(message.timestamp.before.max.ms)"
                ),
            )
        if self.needs_key:
            _add(found, chunk.key_sizes < 0, lambda row: "it has no key, which a compacted topic needs")
        return sorted(found.items())

    def learned(self, code: str, chunk: Chunk, row: int, now_ms: int) -> TopicRules:
        """Return the rules as a record shows them that the broker has refused: what is worse than it will be refused too."""
        ahead_ms = int(chunk.timestamps_ms[row]) - now_ms
        if code in ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
            size = _batch_bytes(chunk, row)
            return replace(self, max_bytes=min(size - 1, self.max_bytes or size))
        if code == "INVALID_TIMESTAMP" and ahead_ms > 0:
            return replace(self, ahead_max_ms=min(ahead_ms - 1, self.ahead_max_ms or ahead_ms))
        if code == "INVALID_TIMESTAMP":
            return replace(self, behind_max_ms=min(-ahead_ms - 1, self.behind_max_ms or -ahead_ms))
        if code == "INVALID_RECORD" and int(chunk.key_sizes[row]) < 0:
            return replace(self, needs_key=True)
        return self


def _too_large(chunk: Chunk, most: int) -> dict[int, int]:
    """Return the rows that take more bytes as a batch of their own, with how many.

    Headers, which take the time of a look at each, are looked at where the record may be too large by what lies between them and
    the next ones in the buffer.
    """
    parts = np.maximum(chunk.key_sizes, 0).astype(np.int64) + np.maximum(chunk.value_sizes, 0)
    has = np.flatnonzero(chunk.header_counts > 0)
    if len(has):
        starts = chunk.header_starts[has]
        ends = np.append(np.sort(starts), len(chunk.buffer))
        parts[has] += ends[np.searchsorted(ends, starts, side="right")] - starts
    sizes = {row: _batch_bytes(chunk, row) for row in np.flatnonzero(parts > most - _OVERHEAD_MAX_BYTES).tolist()}
    return {row: size for row, size in sizes.items() if size > most}


def _batch_bytes(chunk: Chunk, row: int) -> int:
    """Return the bytes of a batch, not compressed, that holds one record alone."""
    count = int(chunk.header_counts[row])
    record = _RECORD_BYTES + _varint_bytes(count) + chunk.header_bytes(row)
    record += sum(max(size, 0) + _varint_bytes(size) for size in (int(chunk.key_sizes[row]), int(chunk.value_sizes[row])))
    return _BATCH_BYTES + _varint_bytes(record) + record


def _varint_bytes(size: int) -> int:
    """Return how many bytes a size (-1: null) takes as a zigzag varint."""
    return max(1, -(-(max(size, 0) * 2).bit_length() // 7))


def _add(found: dict[int, str], is_refused: NDArray[np.bool_], why: Callable[[int], str]) -> None:
    for row in np.flatnonzero(is_refused).tolist():
        found.setdefault(row, why(row))


def rules_of(configs: Mapping[str, str]) -> TopicRules:
    """Return the rules that a topic's configs state."""
    is_create_time = configs.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicRules(
        _number(configs, "max.message.bytes"),
        _number(configs, "message.timestamp.after.max.ms") if is_create_time else None,
        _number(configs, "message.timestamp.before.max.ms") if is_create_time else None,
        "compact" in configs.get("cleanup.policy", ""),
    )


def _number(configs: Mapping[str, str], name: str) -> int | None:
    """Return a limit, None where it is absent or so large that no record meets it."""
    value = int(configs.get(name, _NO_LIMIT))
    return None if value >= _NO_LIMIT else value


_NO_LIMIT = 1 << 60
