"""Fields of JSON values as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column, Kind

from ..exact.codecs import other_spellings
from ..vectors.expressions import KINDS, Mask, Unsupported, Vector

_MAX_FIELDS = 60


class Extracted(NamedTuple):
    """What was decoded of N rows: which are certain; nulls, values (doubles by their bits) and sizes of texts, [F, N]; what texts
    point into; and (field, rows, objects) of values that are objects. The size of a text that is not plain is -1 - size."""

    certain: Mask
    nulls: Mask
    values: I64
    sizes: I64
    memory: list[Any]
    objects: Sequence[tuple[int, I64, list[Any]]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The fields of JSON values that are decoded, F.

    Attributes:
        text, ends, fields: their spellings joined, where each ends, and whose it is: an upper-case name may be in lower case.
        numbers: of their kinds.
        any_case: 1 for those that are looked for in any spelling.
    """

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    text: npt.NDArray[np.uint8]
    ends: I64
    fields: I64
    numbers: I64
    any_case: I64

    @classmethod
    def of(cls, columns: tuple[Column, ...], declared: tuple[Column, ...]) -> Fields:
        """Make it of those of the declared columns that are decoded.

        Raises Unsupported: too many, or one of a type that is not held.
        """
        if len(columns) > _MAX_FIELDS:
            raise Unsupported(f"{len(columns)} fields")
        for column in columns:
            if column.type.kind not in KINDS:
                raise Unsupported(f"a field of type {column.type}")
        spellings = [(plain_name(column.name).encode(), f) for f, column in enumerate(columns)]
        other = other_spellings(declared, columns)
        spellings += [(other[column.name].encode(), f) for f, column in enumerate(columns) if column.name in other]
        names = [name for name, _ in spellings]
        return cls(
            tuple(column.name for column in columns),
            tuple(column.type.kind for column in columns),
            np.frombuffer(b"".join(names) or b" ", np.uint8),
            np.cumsum([len(name) for name in names], dtype=np.int64),
            np.array([field for _, field in spellings], np.int64),
            np.array([KINDS[column.type.kind] for column in columns], np.int64),
            np.array([column.name == column.name.upper() for column in columns], np.int64),
        )

    def extract(self, chunk: Chunk, start: int, stop: int, json: ModuleType) -> Extracted:
        """Decode N rows."""
        count = stop - start
        shape = (len(self.names), count)
        certain, nulls = np.empty(count, np.bool_), np.empty(shape, np.bool_)
        values, sizes = (
            np.empty(shape, np.int64),
            np.empty(shape if Kind.STRING in self.kinds else (len(self.names), 0), np.int64),
        )
        room = int(np.maximum(chunk.value_sizes[start:stop], 0).sum(dtype=np.int64)) if Kind.STRING in self.kinds else 0
        scratch = np.empty(room + 1, np.uint8)
        json.extract(
            np.ascontiguousarray(chunk.buffer),
            np.ascontiguousarray(chunk.value_starts[start:stop]),
            np.ascontiguousarray(chunk.value_sizes[start:stop]),
            np.ascontiguousarray(chunk.timestamps_ms[start:stop]),
            self.text, self.ends, self.fields, self.numbers, self.any_case,
            certain, nulls, values, values.view(np.float64), sizes, scratch,
        )  # fmt: skip
        return Extracted(certain, nulls, values, sizes, [scratch])


def vector_of(found: Extracted, f: int, kind: Kind) -> Vector:
    """Return what was decoded of a field, of a kind that kernels decode."""
    mask = found.nulls[f] if found.nulls[f].any() else None
    data: Any = found.values[f]
    if kind is Kind.DOUBLE:
        data = data.view(np.float64)
    elif kind is Kind.BOOLEAN:
        data = data == 1
    if kind is not Kind.STRING:
        return Vector(data, None, mask)
    lengths, special = found.sizes[f], found.sizes[f] < 0
    if special.any():
        return Vector(data, np.where(special, ~lengths, lengths), mask, special)
    return Vector(data, lengths, mask)


def plain_name(name: str) -> str:
    """Return a name that JSON writes as it is. Raises Unsupported."""
    if not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        raise Unsupported(f"the name {name!r}")
    return name
