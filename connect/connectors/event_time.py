"""Takes the event time of rows from one or more of their columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logflume.connect.api import I64
from logflume.log.arrow_values import BadValue
from logflume.log.schemas import Column, Kind

AUTO, EPOCH_MS, EPOCH_S, ISO8601 = "auto", "epoch_ms", "epoch_s", "iso8601"
_MAX_MS = 253_402_300_800_000
"""The year 10000: beyond what any column of time means."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """Which columns hold the event time, and how.

    Attributes:
        columns: the texts of several are joined by one blank before `format` is applied.
        format: auto (TIMESTAMP or a number: epoch_ms; DATE: its midnight; text: iso8601), epoch_ms, epoch_s, iso8601, or a
        strptime
            pattern such as `%d.%m.%Y %H:%M`.
        zone: IANA name, for texts without an offset.
    """

    columns: tuple[str, ...]
    format: str
    zone: str

    def of(self, columns: Sequence[Column], values: Sequence[list[Any]]) -> tuple[I64, list[BadValue]]:
        """Return int64[N] milliseconds since the epoch, and the rows without a usable time (their value is 0)."""
        places = [next(i for i, column in enumerate(columns) if column.name == name) for name in self.columns]
        kind = columns[places[0]].type.kind
        if len(places) == 1 and self.format in (AUTO, EPOCH_MS, EPOCH_S) and kind is not Kind.STRING:
            factor = 86_400_000 if kind is Kind.DATE else 1000 if self.format == EPOCH_S else 1
            return _numbers(values[places[0]], factor)
        texts = (
            values[places[0]]
            if len(places) == 1
            else [_joined(parts) for parts in zip(*(values[i] for i in places), strict=True)]
        )
        return self._texts([None if text is None else str(text) for text in texts])

    def _texts(self, texts: list[str | None]) -> tuple[I64, list[BadValue]]:
        try:
            return _checked(self._parse(texts))
        except (pa.ArrowException, ValueError):
            pass
        times = np.zeros(len(texts), np.int64)
        bad: list[BadValue] = []
        for index, text in enumerate(texts):
            try:
                one, wrong = _checked(self._parse([text]))
                times[index] = one[0]
                bad.extend((index, reason) for _, reason in wrong)
            except (pa.ArrowException, ValueError):
                bad.append((index, f"expected a time ({self.format}), found {text!r}"))
        return times, bad

    def _parse(self, texts: list[str | None]) -> Any:
        if self.format == EPOCH_MS:
            return pc.cast(pa.array(texts, pa.string()), pa.int64())
        if self.format == EPOCH_S:
            return pa.array([None if text is None else int(float(text) * 1000) for text in texts], pa.int64())
        strings = pa.array(texts, pa.string())
        if self.format not in (AUTO, ISO8601):
            return self._utc(pc.strptime(strings, format=self.format, unit="ms"))
        try:
            return pc.cast(strings, pa.timestamp("ms", "UTC")).cast(pa.int64())
        except pa.ArrowInvalid:
            return self._utc(pc.cast(strings, pa.timestamp("ms")))

    def _utc(self, naive: Any) -> Any:
        """A local time that happens twice (clock set back) is the earlier one; one that never was is that of the change."""
        return pc.assume_timezone(naive, self.zone, ambiguous="earliest", nonexistent="latest").cast(pa.int64())


def _joined(parts: tuple[Any, ...]) -> str | None:
    return None if None in parts else " ".join(str(part) for part in parts)


def _numbers(values: list[Any], factor: int) -> tuple[I64, list[BadValue]]:
    return _checked(pa.array([None if v is None else int(v * factor) if abs(v) < _MAX_MS else -1 for v in values], pa.int64()))


def _checked(times: Any) -> tuple[I64, list[BadValue]]:
    filled = pc.fill_null(times, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    wrong = np.flatnonzero((filled < 0) | (filled > _MAX_MS)).tolist()
    nulls = times.is_null().to_pylist() if wrong else []
    bad = [
        (i, "the event time is null" if nulls[i] else f"event time {filled[i]} ms is outside the years 1970 to 9999")
        for i in wrong
    ]
    return np.where((filled < 0) | (filled > _MAX_MS), 0, filled), bad
