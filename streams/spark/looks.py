"""A look at a history before it is computed: how many entries its ranges would give, from a part of it that is run here."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logflume.log import connect

from .ranges import OffsetRange
from .rows import RowKind
from .steps import RangeRunner

LOOK_RECORDS = 250_000
"""Some tenths of a second. A quarter of it says how the number of entries grows; windows and rare keys need many records."""
LOOK_S_MAX = 10.0
"""Far beyond what records cost without slow functions of the user: what is decided should not hang on how busy a machine is."""
FRACTIONS = (256, 64, 16, 4, 1)
"""The parts of it that are run, one after the other."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Implements `stages.Look`; what was looked at once is known. The functions of the application are called."""

    known: dict[tuple[str, str, str, OffsetRange], Mapping[str, float]] = field(default_factory=dict)

    def __call__(self, application: str, work: RangeRunner, whole: OffsetRange, records: int) -> Mapping[str, float]:
        place = (work.step.where, application, work.subtopology, whole)
        if place not in self.known:
            self.known[place] = entries_a_record(work, whole, records)
        return self.known[place]


def entries_a_record(work: RangeRunner, whole: OffsetRange, records: int) -> Mapping[str, float]:
    """Return, of each store, how many entries a range of so many offsets gives for each of them.

    From larger and larger parts in the middle of `whole`. Entries grow with the length of a range by a power of it, from 0 (the
    same keys again and again) to 1 (each record another key or window). Nothing, where functions of the user are so slow that it
    takes LOOK_S_MAX: such are worth sharing out among ranges, whatever those give.
    """
    records, start = min(records, len(whole)), whole.start + max(len(whole) - LOOK_RECORDS, 0) // 2
    length = min(LOOK_RECORDS, whole.end - start)
    parts = [OffsetRange(whole.topic, whole.partition, start, start - -length // fraction) for fraction in FRACTIONS]
    run = replace(work, ranges=tuple((0, part) for part in parts)).prepared()
    few, many, begun_s = Counter[str](), Counter[str](), time.monotonic()
    with connect(work.step.where) as log:
        for at in range(len(parts)):
            if time.monotonic() - begun_s > LOOK_S_MAX:
                return {}
            few, many = many, _entries(run(log, at, work.step.read))
    found = {}
    for store, entries in many.items():
        power = min(max(math.log(entries / max(few[store], 1), FRACTIONS[-2]), 0.0), 1.0)
        found[store] = entries * (records / length) ** power / records
    return found


def _entries(given: Iterable[Any]) -> Counter[str]:
    """Return how many entries of each store are among the rows that a range gives."""
    found = Counter[str]()
    for batch in given:
        if batch is not None and batch.num_rows and batch.column("kind")[0].as_py() == RowKind.PARTIAL:
            found[batch.column("name")[0].as_py()] += batch.num_rows
    return found
