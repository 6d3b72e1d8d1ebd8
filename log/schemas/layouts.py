"""How records of one registered schema lie in bytes, as data: what kernels read and write columns by, many records at once.

A layout holds what the serde of the format does for plain columns, and no more: where a kernel meets anything else it leaves the
record to the serde. What the steps mean is said where they are made (`avro_layout.py`, `proto_layout.py`); JSON needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .types import Kind

PLAIN_KINDS = frozenset({Kind.BOOLEAN, Kind.INTEGER, Kind.DATE, Kind.BIGINT, Kind.TIMESTAMP, Kind.DOUBLE, Kind.STRING})
"""Kinds of column that layouts read and write."""

MAX_STEPS = 4096

Steps = tuple[tuple[int, int, int, int, int], ...]


class Wire(StrEnum):
    """The forms in which payloads are written."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class Unheld(Exception):
    """A schema, or what is wanted of it, that has no layout; the message says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the records lie that begin with `head`.

    Attributes:
        steps: (operation, column or -1, and three numbers whose meaning is the operation's).
        symbols, numbers: names of enums, and the number of each.
        absent: of each column what it is where a record does not have it: -1 null, -2 zero or empty, else a symbol.
    """

    wire: Wire
    head: bytes
    steps: Steps = ()
    symbols: tuple[bytes, ...] = ()
    numbers: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
