"""What a stage costs: records, entries and bytes that it gives, CPU of its tasks; each task tells it in its last row."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .rows import RowKind, row_of_bytes


class Cost(msgspec.Struct, frozen=True, array_like=True):
    """Of one task or several. `rows`: records and entries. `cpu_seconds`: of Python, Spark's JVM apart."""

    rows: int = 0
    out_bytes: int = 0
    cpu_seconds: float = 0.0


_GIVEN = (RowKind.REPARTITION, RowKind.SINK, RowKind.CHANGELOG, RowKind.PARTIAL)
"""Rows that are records or entries; by all others tasks say how far they are."""
_decode = msgspec.msgpack.Decoder(Cost).decode


def cost_of(values: Iterable[bytes]) -> Cost:
    """Return the sum of what tasks have told.

    >>> cost_of([msgspec.msgpack.encode(Cost(1, 10, 0.5)), msgspec.msgpack.encode(Cost(2, 5, 0.25))])
    Cost(rows=3, out_bytes=15, cpu_seconds=0.75)
    """
    found = [_decode(value) for value in values]
    return Cost(
        sum(each.rows for each in found),
        sum(each.out_bytes for each in found),
        sum(each.cpu_seconds for each in found),
    )


@dataclass(slots=True)
class Meter:
    """Adds up what a task gives and uses."""

    rows: int = 0
    out_bytes: int = 0
    cpu_seconds: float = 0.0

    def measured(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, or None between them; what the consumer does meanwhile is not counted."""
        begun_s = time.process_time()
        for batch in batches:
            self.cpu_seconds += time.process_time() - begun_s
            if batch is not None:
                if batch.num_rows and batch.column("kind")[0].as_py() in _GIVEN:
                    self.rows += batch.num_rows
                self.out_bytes += batch.nbytes
            yield batch
            begun_s = time.process_time()
        self.cpu_seconds += time.process_time() - begun_s

    def row(self) -> Any:
        """Return the row that says it."""
        cost = Cost(self.rows, self.out_bytes, self.cpu_seconds)
        return row_of_bytes(RowKind.COST, "", 0, msgspec.msgpack.encode(cost))


@dataclass(frozen=True, slots=True)
class Costed:
    """Maps over Arrow batches what `work` maps, and gives the cost as the last row."""

    work: Callable[[Iterator[Any]], Iterator[Any]]

    def __call__(self, batches: Iterator[Any]) -> Generator[Any]:
        meter = Meter()
        yield from meter.measured(iter(self.work(batches)))
        yield meter.row()
