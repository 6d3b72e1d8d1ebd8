"""Which records a topic will not take, known before they are sent: a transaction with one of them would be lost. (pure)

What cannot be known here (a rule that changed, a clock that differs) the broker says: it is learnt, and the commit done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from logflume.log.records import I64, Chunk, Headers

_BATCH_BYTES = 61
_RECORD_BYTES = 4
"""The header of a batch; attributes, the two deltas and the number of headers of its only record."""


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
            sizes = _batch_bytes(chunk, self.max_bytes // 2)
            _add(found, sizes > self.max_bytes, lambda row: f"{sizes[row]} bytes or more, max.message.bytes is {self.max_bytes}")
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
            size = int(_batch_bytes(chunk.slice(row, row + 1), 0)[0])
            return replace(self, max_bytes=min(size - 1, self.max_bytes or size))
        if code == "INVALID_TIMESTAMP" and ahead_ms > 0:
            return replace(self, ahead_max_ms=min(ahead_ms - 1, self.ahead_max_ms or ahead_ms))
        if code == "INVALID_TIMESTAMP":
            return replace(self, behind_max_ms=min(-ahead_ms - 1, self.behind_max_ms or -ahead_ms))
        if code == "INVALID_RECORD" and int(chunk.key_sizes[row]) < 0:
            return replace(self, needs_key=True)
        return self


def _batch_bytes(chunk: Chunk, from_bytes: int) -> I64:
    """Return the bytes of batches, not compressed, that hold one of these records each.

    Headers, which take the time of a look at each, count in those that have so many bytes without.
    """
    sizes = np.full(len(chunk), _RECORD_BYTES, np.int64)
    for part in (chunk.key_sizes, chunk.value_sizes):
        sizes += np.maximum(part, 0) + _varint_bytes(part)
    for row in np.flatnonzero((chunk.header_counts > 0) & (sizes > from_bytes - _BATCH_BYTES)).tolist():
        sizes[row] += _header_bytes(chunk.slice(row, row + 1).headers()[0])
    found: I64 = sizes + _varint_bytes(sizes) + _BATCH_BYTES
    return found


def _header_bytes(headers: Headers) -> int:
    parts = [len(each) for name, value in headers for each in (name.encode(), value or b"")]
    return sum(parts) + int(_varint_bytes(np.array(parts, np.int64)).sum())


def _varint_bytes(sizes: NDArray[np.signedinteger]) -> I64:
    """Return the bytes of these sizes (-1: null) as zigzag varints."""
    found: I64 = np.searchsorted(_LARGER_VARINTS, sizes, side="right").astype(np.int64) + 1
    return found


_LARGER_VARINTS = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27])


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
