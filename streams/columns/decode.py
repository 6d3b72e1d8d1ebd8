"""Records -> columns: values and keys of a source.

Values have two decoders. The fast one (kernels: rows of scalars in JSON, or in a form whose schemas are registered) says per row
whether it is certain; rows that are not, and everything where it does not exist, are decoded by the exact one (msgspec, and the
serde for what surprises it) into the same columns. What cannot be decoded is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from logflume.log import DecodeError
from logflume.log.records import I64, Chunk
from logflume.log.schemas import Column as Field
from logflume.log.schemas import FormatSpec, Kind, format_of, serde

from ..exact.codecs import write_decode
from ..exact.expressions import Namespace
from ..exact.writer import Writer
from ..expr import Side
from ..kernels import loaded_kernels
from ..vectors.expressions import KINDS, Mask, Unsupported, Vector
from .batch import ColumnId
from .column import Bytes, Column, patched
from .defaults import Defaults, Seen
from .fields import Extracted, Fields, vector_of
from .framed import FramedFields
from .header_ids import HeaderIds

FEW_RECORDS = 48
_MAX_REFUSED_SHARE = 2
"""Where more than one row in this many is refused by the fast decoder, the exact one takes all of them and the next runs."""
_RUNS_WITHOUT = 30

Report = Callable[[int, Exception], None]
_Objects = tuple[int, I64, list[Any]]
Decode = Callable[[Sequence[bytes | None], Report], tuple[list[int], list[bool], list[list[Any]]]]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Columns of the rows of a run that could be decoded.

    Attributes:
        rows: which; None: all.
        nulls: where the value is null.
        seen: what the kernels saw to be absent, where somebody asks; None: they have not looked.
    """

    columns: dict[ColumnId, Column]
    rows: I64 | None
    nulls: Mask | None
    memory: list[Any]
    seen: Seen | None = None


class ValueDecoder:
    """Decodes values of one source. Remembers only whether the fast decoder has been worth its time lately."""

    def __init__(
        self,
        format: FormatSpec,
        columns: Sequence[Field],
        used: frozenset[str],
        *,
        bare_class: Any = None,
        filled_class: type[Any] | None = None,
    ) -> None:
        """`bare_class`: of a bare value; `filled_class`: whose defaults stand where records lack fields."""
        self._kept = tuple(column for column in columns if column.name in used)
        self._exact = exact_decoder(format, columns, self._kept, bare_class)
        self._fast = _fast_fields(format, tuple(columns), self._kept)
        self._rest = 0
        self._header_ids = HeaderIds(format.registry) if format_of(format.name).schemas is not None else None
        self._defaults = None if filled_class is None else Defaults.of(filled_class, format, self._kept)

    def decode(self, chunk: Chunk, start: int, stop: int, report: Report) -> Decoded:
        """Decode the values of records start..stop; rows count from `start`."""
        found = self._decode(chunk, start, stop, report)
        return found if self._defaults is None else self._filled(self._defaults, found, chunk, start, report)

    def _filled(self, defaults: Defaults, found: Decoded, chunk: Chunk, start: int, report: Report) -> Decoded:
        """Return the rows with the defaults of absent fields, without those for which none could be made."""
        rows = found.rows

        def values(places: I64) -> Sequence[bytes | None]:
            part = chunk.take((places if rows is None else rows[places]) + start)
            has_ids = self._header_ids is not None and self._header_ids.are_in(part, 0, len(part))
            return self._header_ids.framed(part)[0] if self._header_ids is not None and has_ids else part.values()

        def tell(place: int, error: Exception) -> None:
            report(place if rows is None else int(rows[place]), error)

        columns = dict(found.columns)
        failed = defaults.fill(columns, found.nulls, values, found.seen, found.memory, tell)
        if not failed:
            return replace(found, columns=columns)
        count = next(iter(columns.values())).count
        left = np.delete(np.arange(count), sorted(failed))
        gone = None if found.nulls is None else found.nulls[left]
        kept = left if rows is None else rows[left]
        return Decoded({c: column.take(left) for c, column in columns.items()}, kept, gone, found.memory)

    def _decode(self, chunk: Chunk, start: int, stop: int, report: Report) -> Decoded:
        if self._header_ids is not None and self._header_ids.are_in(chunk, start, stop):
            values, wrong = self._header_ids.framed(chunk.slice(start, stop))
            return self._decode_values(values, lambda row, error: report(row, wrong.get(row, error)))
        loaded = loaded_kernels()
        if self._fast is None or loaded is None or stop - start < FEW_RECORDS or not chunk.buffer.flags.c_contiguous:
            return self._decode_objects(chunk, start, stop, report)
        if self._rest:
            self._rest -= 1
            return self._decode_objects(chunk, start, stop, report)
        found = self._fast.extract(chunk, start, stop, loaded.json)
        if found is None:
            return self._decode_objects(chunk, start, stop, report)
        count = stop - start
        refused = np.flatnonzero(~found.certain)
        if len(refused) * _MAX_REFUSED_SHARE > count:
            self._rest = _RUNS_WITHOUT
            return self._decode_objects(chunk, start, stop, report)
        memory: list[Any] = [chunk.buffer, *found.memory]
        if len(refused) == 0:
            return Decoded(self._columns(found, [], memory), None, None, memory, self._seen(found))
        return self._joined(chunk, start, found, refused, memory, report)

    def _columns(self, found: Extracted, more: Sequence[_Objects], memory: list[Any]) -> dict[ColumnId, Column]:
        """Return what was decoded as columns, with `more` values put into them."""
        assert self._fast is not None
        made = {}
        for f, (name, kind) in enumerate(zip(self._fast.names, self._fast.kinds, strict=True)):
            parts = [(rows, values) for place, rows, values in (*found.objects, *more) if place == f]
            made[Side.VALUE, name] = _column(found, f, kind, parts, memory)
        return made

    def _joined(self, chunk: Chunk, start: int, found: Extracted, refused: I64, memory: list[Any], report: Report) -> Decoded:
        """Decode refused rows exactly, and put them into the columns."""
        count, places = len(found.certain), refused.tolist()
        rest = chunk.take(refused + start)
        kept, is_null, lists = self._exact(rest.values(), lambda row, error: report(places[row], error))
        rows = refused[kept]
        made = self._columns(found, [(f, rows, values) for f, values in enumerate(lists)], memory)
        gone = np.zeros(count, np.bool_)
        gone[rows] = is_null
        seen = self._seen(found)
        if len(kept) == len(refused):
            return Decoded(made, None, gone if gone.any() else None, memory, seen)
        alive = found.certain.copy()
        alive[rows] = True
        which = np.flatnonzero(alive)
        alive_columns = {c: column.take(which) for c, column in made.items()}
        its = None if seen is None else seen.take(which)
        return Decoded(alive_columns, which, gone[which] if gone.any() else None, memory, its)

    def _seen(self, found: Extracted) -> Seen | None:
        return None if self._defaults is None else self._defaults.seen(found, [column.name for column in self._kept])

    def _decode_objects(self, chunk: Chunk, start: int, stop: int, report: Report) -> Decoded:
        part = chunk if stop - start == len(chunk) else chunk.slice(start, stop)
        return self._decode_values(part.values(), report)

    def _decode_values(self, values: Sequence[bytes | None], report: Report) -> Decoded:
        kept, is_null, lists = self._exact(values, report)
        columns = {(Side.VALUE, c.name): Column.of_objects(v, c.type.kind) for c, v in zip(self._kept, lists, strict=True)}
        rows = None if len(kept) == len(values) else np.array(kept, np.int64)
        return Decoded(columns, rows, np.array(is_null, np.bool_) if True in is_null else None, [])


def _column(found: Extracted, f: int, kind: Kind, parts: Sequence[tuple[I64, list[Any]]], memory: list[Any]) -> Column:
    """Return a field's column, with the values of some rows given as objects."""
    count = len(found.certain)
    if kind not in KINDS:
        values: list[Any] = [None] * count
        for rows, objects in parts:
            for row, value in zip(rows.tolist(), objects, strict=True):
                values[row] = value
        return Column.of_objects(values, kind)
    vector = vector_of(found, f, kind)
    if not parts:
        return Column.of_vector(vector, count, kind, memory)
    every = np.concatenate([rows for rows, _ in parts])
    return patched(vector, count, kind, every, [value for _, objects in parts for value in objects], memory)


class FastFields(Protocol):
    """Decodes columns with the kernels."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    def extract(self, chunk: Chunk, start: int, stop: int, json: ModuleType, /) -> Extracted | None:
        """Decode records start..stop; None: not yet."""


def _fast_fields(format: FormatSpec, columns: tuple[Field, ...], kept: tuple[Field, ...]) -> FastFields | None:
    try:
        if format.name != "JSON":
            return FramedFields(format, columns, kept)
        return None if not format.is_wrapped and len(columns) == 1 else Fields.of(kept, columns)
    except Unsupported:
        return None


def exact_decoder(format: FormatSpec, columns: Sequence[Field], kept: Sequence[Field], bare_class: Any = None) -> Decode:
    """Return the exact decoder: (bytes, report) -> places of the rows decoded, which are null, and one list per kept column."""
    namespace, writer = Namespace(), Writer()
    writer.names = set(_RESERVED)
    writer.globals = namespace.values
    namespace.is_taken = lambda name: name in _RESERVED
    writer.line("def run(datas, report):")
    writer.depth = 1
    lists = [f"list_{i}" for i in range(len(kept))]
    writer.line("kept, nulls = [], []")
    for name in lists:
        writer.line(f"{name} = []")
    with writer.block("for i, data in enumerate(datas):"):
        used = [column.name for column in kept]
        names = write_decode(
            writer,
            namespace,
            "value",
            format,
            columns,
            used,
            "data",
            "null",
            ["report(i, error)", "continue"],
            bare_class=bare_class,
        )
        writer.line("kept.append(i)")
        writer.line("nulls.append(null)")
        for target, name in zip(lists, names, strict=True):
            writer.line(f"{target}.append({name})")
    writer.line(f"return kept, nulls, [{', '.join(lists)}]")
    scope = dict(namespace.values)
    exec(compile(writer.text(), "<decoder>", "exec"), scope)
    run: Decode = scope["run"]
    return run


_RESERVED = frozenset({"datas", "report", "kept", "nulls", "null", "i", "data", "error", "run", "enumerate"})


_NUMBER_BYTES = {Kind.INTEGER: 4, Kind.BIGINT: 8, Kind.DOUBLE: 8}


class KeyDecoder:
    """Decodes the encoded keys of a batch into columns: KAFKA texts and integers by kernels, all else by the serde.

    `is_checked`: keys that nobody reads are looked at too, where a look tells whether they could be decoded (KAFKA).
    """

    def __init__(
        self,
        format: FormatSpec,
        columns: tuple[Field, ...],
        used: frozenset[str],
        *,
        suffix_bytes: int = 0,
        is_checked: bool = False,
    ) -> None:
        self._columns = columns
        self._kept = tuple(column for column in columns if column.name in used)
        self._suffix_bytes = suffix_bytes
        only = columns[0].type.kind if format.name == "KAFKA" and len(columns) == 1 else None
        self._checked = only if is_checked and not self._kept and (only is Kind.STRING or only in _NUMBER_BYTES) else None
        self._decode = serde(format, columns).decode if self._kept or self._checked else None
        self._fast = only if only in (Kind.STRING, Kind.INTEGER, Kind.BIGINT) and not suffix_bytes else None

    def decode(self, keys: Bytes, memory: list[Any], report: Report) -> tuple[dict[ColumnId, Column], I64 | None]:
        """Return the key columns, and the rows that could be decoded (None: all)."""
        if self._checked is not None:
            return {}, self._readable(keys, self._checked, report)
        if self._decode is None:
            return {}, None
        loaded = loaded_kernels()
        if self._fast is not None and loaded is not None and keys.count >= FEW_RECORDS and keys.has_spans:
            return self._decode_spans(keys, loaded.texts, memory, report)
        return self._decode_objects(keys.objects(), report)

    def _readable(self, keys: Bytes, kind: Kind, report: Report) -> I64 | None:
        """Return the rows whose keys could be decoded (None: all). Only those that may not are decoded, to be told of."""
        rows = self._odd_texts(keys) if kind is Kind.STRING else self._odd_numbers(keys, _NUMBER_BYTES[kind])
        if not len(rows):
            return None
        places = rows.tolist()
        _, kept = self._decode_objects(keys.take(rows).objects(), lambda row, error: report(places[row], error))
        return None if kept is None else np.delete(np.arange(keys.count), np.delete(rows, kept))

    def _odd_numbers(self, keys: Bytes, width: int) -> I64:
        sizes = keys.spans()[2]
        return np.flatnonzero((sizes >= 0) & (sizes != width + self._suffix_bytes))

    def _odd_texts(self, keys: Bytes) -> I64:
        """Return the rows of keys that may be no UTF-8: none if all of them, joined by an ASCII character, are."""
        rows, looked_at, loaded = np.arange(keys.count), keys, loaded_kernels()
        if loaded is not None and keys.count >= FEW_RECORDS and keys.has_spans and not self._suffix_bytes:
            buffer, starts, sizes = keys.spans()
            spans, room = (np.ascontiguousarray(starts), np.ascontiguousarray(sizes)), np.empty((2, keys.count), np.int64)
            nulls, unsure = np.empty((2, keys.count), np.bool_)
            loaded.texts.text_keys(buffer, *spans, keys.count, *room, nulls, unsure)
            rows = np.flatnonzero(unsure)
            looked_at = keys.take(rows)
        texts = filter(None, looked_at.objects())
        try:
            b"\0".join([text[: -self._suffix_bytes] for text in texts] if self._suffix_bytes else texts).decode()
        except UnicodeDecodeError:
            return rows
        return rows[:0]

    def _decode_objects(self, keys: list[bytes | None], report: Report) -> tuple[dict[ColumnId, Column], I64 | None]:
        assert self._decode is not None
        rows: list[Any] = []
        kept: list[int] = []
        nothing = (None,) * len(self._columns)
        for i, key in enumerate(keys):
            if key is not None and self._suffix_bytes:
                key = key[: -self._suffix_bytes]
            try:
                row = nothing if key is None else self._decode(key)
            except DecodeError as error:
                report(i, error)
                continue
            kept.append(i)
            rows.append(nothing if row is None else row)
        columns = {}
        for place, column in enumerate(self._columns):
            if column in self._kept:
                columns[Side.KEY, column.name] = Column.of_objects([row[place] for row in rows], column.type.kind)
        return columns, None if len(kept) == len(keys) else np.array(kept, np.int64)

    def _decode_spans(
        self, keys: Bytes, texts: Any, memory: list[Any], report: Report
    ) -> tuple[dict[ColumnId, Column], I64 | None]:
        buffer, starts, sizes = keys.spans()
        count = keys.count
        starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
        data, nulls, unsure = np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count, np.bool_)
        lengths = None
        if self._fast is Kind.STRING:
            lengths = np.empty(count, np.int64)
            texts.text_keys(buffer, starts, sizes, count, data, lengths, nulls, unsure)
        else:
            texts.number_keys(buffer, starts, sizes, 4 if self._fast is Kind.INTEGER else 8, data, nulls, unsure)
        memory.append(buffer)
        name, vector = self._columns[0].name, Vector(data, lengths, nulls if nulls.any() else None)
        assert self._fast is not None
        if not unsure.any():
            return {(Side.KEY, name): Column.of_vector(vector, count, self._fast, memory)}, None
        rows = np.flatnonzero(unsure)
        places = rows.tolist()
        found, kept = self._decode_objects(keys.take(rows).objects(), lambda row, error: report(places[row], error))
        good = rows if kept is None else rows[kept]
        column = patched(vector, count, self._fast, good, found[Side.KEY, name].objects(), memory)
        if kept is None:
            return {(Side.KEY, name): column}, None
        alive = ~unsure
        alive[good] = True
        which = np.flatnonzero(alive)
        return {(Side.KEY, name): column.take(which)}, which
