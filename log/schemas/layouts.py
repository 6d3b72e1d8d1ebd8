"""How records of one registered schema lie in bytes, as data: what kernels read and write columns by, many records at once.

A layout holds what the serde of the format does: of plain values, also inside of records, kernels make columns; of all else
(arrays, maps, decimals, bytes ...) they find where it lies, and `Leaf.read` makes its values of those bytes. Where a
kernel meets anything else it leaves the record to the serde. What the steps mean is said where they are made (`avro_layout.py`,
`proto_layout.py`, `row_format.py`); JSON needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from .types import Kind

PLAIN_KINDS = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.DATE, Kind.BIGINT, Kind.TIMESTAMP, Kind.DOUBLE, Kind.STRING})
"""Kinds of value that kernels make columns of."""

MAX_STEPS = 4096

Steps = tuple[tuple[int, int, int, int, int], ...]


class Wire(StrEnum):
    """The forms in which payloads are written."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
    ROW = "ROW"


class Unheld(Exception):
    """A schema, or what is wanted of it, that has no layout; the message says why."""


Read = Callable[[Sequence[bytes]], list[Any]]
"""Makes values of where they lie. Raises DecodeError: one of them is none; which is not said."""
Write = Callable[[Sequence[Any]], list[bytes | None]]
"""Makes bytes of values that are not null, None of one that cannot be written."""


class Found(IntEnum):
    """What a kernel finds of a value."""

    VALUE = 0
    """The value, typed; of texts, where they lie."""
    CONTENT = 1
    """Where its bytes lie."""
    WHOLE = 2
    """Where all lies that was written of it."""
    PRESENCE = 3
    """Of a record: whether it is there. Its fields are leaves of their own."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of a record that a kernel looks for.

    Attributes:
        read: of CONTENT and WHOLE, what makes values of the bytes.
        names, fields: of PRESENCE, the names of its fields and which leaves they are, -1 where the writer had no such field.
    """

    found: Found
    kind: Kind
    read: Read | None = None
    names: tuple[str, ...] = ()
    fields: tuple[int, ...] = ()


def as_they_lie(values: Sequence[Any]) -> list[Any]:
    """Read and write BYTES."""
    return list(values)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the records lie that begin with `head`.

    Attributes:
        steps: (operation, leaf or -1, and three numbers whose meaning is the operation's); when writing, column instead of leaf.
        symbols, numbers: names of enums, and the number of each.
        leaves: what is read; the first are the columns.
        absent: of each leaf what it is where a record does not have it: -1 null, -2 zero or empty, else a symbol.
        writers: of each column that is written, what makes bytes of its values; None: the kernel writes the values.
    """

    wire: Wire
    head: bytes
    steps: Steps = ()
    symbols: tuple[bytes, ...] = ()
    numbers: tuple[int, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    absent: tuple[int, ...] = ()
    writers: tuple[Write | None, ...] = ()
