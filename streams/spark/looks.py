"""A look at a history before it is computed: how many entries its ranges would give, from a part of it that is run here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from logflume.log import Log, connect

from .ranges import OffsetRange
from .rows import RowKind
from .steps import RangeRunner

LOOK_RECORDS = 250_000
"""Some tenths of a second. A quarter of it says how the number of entries grows; windows and rare keys need many records."""


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

    From the middle of `whole`. Entries grow with the length of a range by a power of it, from 0 (the same keys again and again)
    to 1 (each record another key or window).
    """
    records, start = min(records, len(whole)), whole.start + max(len(whole) - LOOK_RECORDS, 0) // 2
    part = OffsetRange(whole.topic, whole.partition, start, min(start + LOOK_RECORDS, whole.end))
    with connect(work.step.where) as log:
        few, many = (_entries(work, each, log) for each in (part.up_to(start + -(-len(part) // 4)), part))
    found = {}
    for store, entries in many.items():
        power = min(max(math.log(entries / max(few[store], 1), 4), 0.0), 1.0)
        found[store] = entries * (records / len(part)) ** power / records
    return found


def _entries(work: RangeRunner, part: OffsetRange, log: Log) -> Counter[str]:
    """Return how many entries of each store a range gives."""
    found = Counter[str]()
    for batch in replace(work, ranges=((0, part),)).prepared()(log, 0, work.step.read):
        if batch is not None and batch.num_rows and batch.column("kind")[0].as_py() == RowKind.PARTIAL:
            found[batch.column("name")[0].as_py()] += batch.num_rows
    return found
