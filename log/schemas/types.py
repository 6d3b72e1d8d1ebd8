"""Column types shared by streams, sql and connect. Data only.

A *row* is a tuple aligned with a tuple of columns; `None` in a row is null, `None` instead of a row is a tombstone (or no key).

| kind | Python value in a row |
|---|---|
| BOOLEAN | bool |
| INTEGER, BIGINT | int within 32 / 64 bits |
| DOUBLE | float |
| DECIMAL | decimal.Decimal with exactly `scale` fractional digits |
| STRING | str |
| BYTES | bytes |
| DATE | int, days since 1970-01-01 |
| TIME | int, milliseconds of the day |
| TIMESTAMP | int, milliseconds since 1970-01-01T00:00Z |
| ARRAY | list of element values |
| MAP | dict (keys STRING unless said otherwise) |
| STRUCT | dict field name -> value, all fields present |
| ANY | any Python object: the value of a plain callable, opaque to expressions |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of column type; names are ksqlDB's."""

    BOOLEAN = "BOOLEAN"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    BYTES = "BYTES"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    ARRAY = "ARRAY"
    MAP = "MAP"
    STRUCT = "STRUCT"
    ANY = "ANY"


@dataclass(frozen=True, slots=True)
class DataType:
    """One column type. `precision`/`scale` belong to DECIMAL, `key`/`element` to MAP and ARRAY, `fields` to STRUCT."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    key: DataType | None = None
    element: DataType | None = None
    fields: tuple[Column, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case Kind.DECIMAL:
                return f"DECIMAL({self.precision}, {self.scale})"
            case Kind.ARRAY:
                return f"ARRAY<{self.element}>"
            case Kind.MAP:
                return f"MAP<{self.key}, {self.element}>"
            case Kind.STRUCT:
                return f"STRUCT<{', '.join(f'{f.name} {f.type}' for f in self.fields)}>"
            case _:
                return self.kind.value


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column of a key or a value. Every column may be null."""

    name: str
    type: DataType


BOOLEAN = DataType(Kind.BOOLEAN)
INTEGER = DataType(Kind.INTEGER)
BIGINT = DataType(Kind.BIGINT)
DOUBLE = DataType(Kind.DOUBLE)
STRING = DataType(Kind.STRING)
BYTES = DataType(Kind.BYTES)
DATE = DataType(Kind.DATE)
TIME = DataType(Kind.TIME)
TIMESTAMP = DataType(Kind.TIMESTAMP)
ANY = DataType(Kind.ANY)


def decimal(precision: int, scale: int) -> DataType:
    """Return DECIMAL(precision, scale); 1 <= precision, 0 <= scale <= precision."""
    return DataType(Kind.DECIMAL, precision=precision, scale=scale)


def array(element: DataType) -> DataType:
    """Return ARRAY<element>."""
    return DataType(Kind.ARRAY, element=element)


def map_of(key: DataType, value: DataType) -> DataType:
    """Return MAP<key, value>."""
    return DataType(Kind.MAP, key=key, element=value)


def struct(*fields: Column) -> DataType:
    """Return STRUCT<fields>."""
    return DataType(Kind.STRUCT, fields=fields)
