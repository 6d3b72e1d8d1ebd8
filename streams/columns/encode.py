"""Columns -> records: keys and values of an output.

Like decoding, a fast encoder (kernels, JSON rows of scalars) says of which rows it is certain, and the exact one takes the rest;
the rows stay in their order. What cannot be encoded is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logflume.log.records import I32, I64, Chunk
from logflume.log.schemas import Column as Field
from logflume.log.schemas import FormatSpec, Kind, Layout, Wire, Write, any_json_rows, has_layouts, write_layout

from ..exact.codecs import encode_fragment
from ..exact.expressions import Fragment, Namespace
from ..expr import Meta, Side
from ..kernels import Kernels, loaded_kernels, more_kernels
from ..vectors.expressions import KINDS, Unsupported, Vector
from ..windows import SESSION_BOUNDS, WINDOW_START, SessionWindow, Window
from .batch import Batch
from .column import Bytes, Column, joined
from .fields import plain_name
from .framed import KERNELS
from .key_forms import KeyForms

FEW_ROWS = 48
_MAX_ESCAPED = 5
"""How many bytes more JSON takes at most for a byte of a text."""
_STEP_BYTES = 32
"""What a step writes at most, texts apart: tag, size, tag and number of a wrapper."""

Report = Callable[[int, Exception], None]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Keys and values of R rows of a batch. `rows`: which, None: all."""

    rows: I64 | None
    keys: Bytes
    values: Bytes


class KeyEncoder:
    """Gives the encoded keys of a batch in one format: as they came where nothing changed them, else made of the key columns."""

    def __init__(
        self,
        format: FormatSpec,
        columns: tuple[Field, ...],
        *,
        is_raw: bool,
        window: Window | None,
        forms: KeyForms | None = None,
    ) -> None:
        """`forms`: brings them to the form in which others wrote the same keys."""
        self._columns = columns
        self._forms = forms
        self._is_raw = is_raw
        self._window = window
        self._run = None if is_raw or not columns else _exact_keys(format, columns, window)
        only = columns[0].type.kind if len(columns) == 1 else None
        is_fast = format.name == "KAFKA" and only in (Kind.STRING, Kind.INTEGER, Kind.BIGINT)
        self._fast = only if is_fast and window is None else None

    def encode(self, batch: Batch, report: Report) -> tuple[Bytes, set[int]]:
        """Return the keys, and the rows that could not be encoded, which have been reported."""
        if self._is_raw and batch.keys is not None:
            return batch.keys, set()
        if not self._columns:
            return Bytes.of_objects([None] * len(batch)), set()
        columns = [batch.column(Side.KEY, column.name) for column in self._columns]
        loaded = loaded_kernels()
        if self._fast is not None and loaded is not None and batch.keys is None and columns[0].has_vector:
            return self._encode_vector(columns[0], batch, loaded), set()
        lists = [column.objects() for column in columns]
        if isinstance(self._window, SessionWindow):
            lists.append(batch.column(Side.META, Meta.WINDOWEND).objects())
        if self._window is not None:
            lists.append(batch.column(Side.META, Meta.WINDOWSTART).objects())
        gone = None if batch.keys is None else batch.keys.nulls()
        failed: set[int] = set()
        is_null = [False] * len(batch) if gone is None else gone.tolist()
        assert self._run is not None
        keys = Bytes.of_objects(self._run(lists, is_null, _noting(failed, report)))
        return keys if self._forms is None else self._forms.unified(keys), failed

    def _encode_vector(self, column: Column, batch: Batch, loaded: Kernels) -> Bytes:
        vector = column.vector()
        assert vector is not None
        count = len(batch)
        if self._fast is Kind.STRING:
            out = np.empty(int(vector.sizes.sum()) + 1, np.uint8)
            loaded.slots.copy_keys(vector.data, vector.sizes.astype(np.int32), np.arange(count), out)
            starts, sizes = np.cumsum(vector.sizes) - vector.sizes, vector.sizes
        else:
            width = 4 if self._fast is Kind.INTEGER else 8
            out, starts = np.empty(count * width + 1, np.uint8), np.empty(count, np.int64)
            loaded.texts.write_number_keys(vector.data, width, out, starts)
            starts, sizes = starts - out.ctypes.data, np.full(count, width, np.int64)
        if vector.nulls is not None:
            sizes = np.where(vector.nulls, -1, sizes)
        return Bytes.of_spans(out, starts, sizes.astype(np.int32))


def _noting(failed: set[int], report: Report) -> Report:
    def note(row: int, error: Exception) -> None:
        failed.add(row)
        report(row, error)

    return note


class RowEncoder:
    """Encodes keys and values of one output."""

    def __init__(self, format: FormatSpec, columns: tuple[Field, ...], keys: KeyEncoder) -> None:
        self._columns = columns
        self._keys = keys
        self._run = _exact_values(format, columns)
        self._fast = _Fast.of(format, columns)
        self._is_any = format.name == "JSON" and not format.is_wrapped and [c.type.kind for c in columns] == [Kind.ANY]

    def encode(self, batch: Batch, report: Report) -> Encoded:
        """Encode the rows of a batch."""
        keys, failed = self._keys.encode(batch, report)
        if failed:
            rows = np.array([row for row in range(len(batch)) if row not in failed], np.int64)
            places = rows.tolist()
            return _within(rows, self._encode(batch.take(rows), keys.take(rows), lambda row, e: report(places[row], e)))
        return self._encode(batch, keys, report)

    def _encode(self, batch: Batch, keys: Bytes, report: Report) -> Encoded:
        columns = [batch.column(Side.VALUE, column.name) for column in self._columns]
        loaded = loaded_kernels()
        if (
            self._fast is not None
            and loaded is not None
            and len(batch) >= FEW_ROWS
            and any(column.has_vector for column in columns)
            and (writer := self._fast.writer()) is not None
            and all(write or column.vector() is not None for column, write in zip(columns, writer.writers, strict=True))
        ):
            return self._fast.encode(batch, columns, keys, loaded, writer, self._exact_rows, report)
        values, failed = self._exact_rows(batch, report)
        found = Bytes.of_objects(values)
        if not failed:
            return Encoded(None, keys, found)
        rows = np.array([row for row in range(len(batch)) if row not in failed], np.int64)
        return Encoded(rows, keys.take(rows), found.take(rows))

    def _exact_rows(self, batch: Batch, report: Report) -> tuple[list[bytes | None], set[int]]:
        lists = [batch.column(Side.VALUE, column.name).objects() for column in self._columns]
        failed: set[int] = set()
        if self._is_any and batch.nulls is None:
            try:
                return any_json_rows(lists[0]), failed
            except Exception:  # noqa: BLE001  # row by row shows whose it is
                pass
        is_null = None if batch.nulls is None else batch.nulls.tolist()
        return self._run(lists, is_null, len(batch), _noting(failed, report)), failed


def _within(rows: I64, found: Encoded) -> Encoded:
    return Encoded(rows if found.rows is None else rows[found.rows], found.keys, found.values)


class _Writer(Protocol):
    """Writes rows with the kernels."""

    @property
    def writers(self) -> tuple[Write | None, ...]:
        """Return what makes bytes of each column's values; None: it is written as a vector."""

    def row_bytes(self, loaded: Kernels) -> int:
        """Return what a row takes at most, its texts apart."""

    def write(
        self, loaded: Kernels, rows: I64, keys: tuple[I64, I32], columns: I64, out: Any, found: tuple[I64, I64, I32]
    ) -> int:
        """Write rows behind their keys, as `json_rows.write`; return the bytes written."""

    def is_ready(self) -> bool:
        """Return whether the kernels of this form are loaded, and the rows may be written with it."""


class _JsonWriter:
    """JSON rows, behind the head of a registered schema or bare. Labels: what stands before each value, joined."""

    def __init__(self, columns: tuple[Field, ...], *, head: bytes = b"") -> None:
        """Raises Unsupported."""
        labels = [f'{"," if i else "{"}"{plain_name(column.name)}":'.encode() for i, column in enumerate(columns)]
        labels[0] = head + labels[0]
        self.writers = (None,) * len(columns)
        self._kinds = np.array([KINDS[column.type.kind] for column in columns], np.int64)
        self._label_ends = np.cumsum([len(label) for label in labels], dtype=np.int64)
        self._labels = np.frombuffer(b"".join(labels) + bytes(8), np.uint8)

    def row_bytes(self, loaded: Kernels) -> int:
        return len(self._labels) + int(loaded.json.NUMBER_SIZE) * len(self._kinds) + 1

    def is_ready(self) -> bool:
        return True

    def write(
        self, loaded: Kernels, rows: I64, keys: tuple[I64, I32], columns: I64, out: Any, found: tuple[I64, I64, I32]
    ) -> int:
        end: int = loaded.json.write(rows, *keys, self._labels, self._label_ends, self._kinds, columns, out, *found)
        return end


class _StepWriter:
    """Avro, Protobuf or MessagePack by the steps of a layout."""

    def __init__(self, layout: Layout) -> None:
        self.writers = layout.writers
        self._kernels = KERNELS[layout.wire]
        self._head = np.frombuffer(layout.head + b"\0", np.uint8)[:-1]
        self._steps = np.array(layout.steps, np.int64).reshape(-1, 5)

    def row_bytes(self, loaded: Kernels) -> int:
        return len(self._head) + _STEP_BYTES * len(self._steps)

    def is_ready(self) -> bool:
        return more_kernels(self._kernels) is not None

    def write(
        self, loaded: Kernels, rows: I64, keys: tuple[I64, I32], columns: I64, out: Any, found: tuple[I64, I64, I32]
    ) -> int:
        kernels = more_kernels(self._kernels)
        assert kernels is not None
        end: int = kernels.write(rows, *keys, self._head, self._steps, columns, out, *found)
        return end


class _Fast:
    """Encodes with the kernels. The schema of a registered form is registered with the first batch."""

    def __init__(self, format: FormatSpec, columns: tuple[Field, ...]) -> None:
        self._format = format
        self._columns = columns
        self._writer: _Writer | None = _JsonWriter(columns) if format.name == "JSON" else None
        self._is_held = True

    @classmethod
    def of(cls, format: FormatSpec, columns: tuple[Field, ...]) -> _Fast | None:
        """Return it if the kernels hold such rows."""
        if not columns or (not format.is_wrapped and len(columns) == 1):
            return None
        if any(format.writes_text(column.type.kind) for column in columns):
            return None
        if "JSON" in format.name and any(column.type.kind not in KINDS for column in columns):
            return None
        try:
            if format.name == "JSON" or has_layouts(format, columns, columns):
                return cls(format, columns)
        except Unsupported:
            pass
        return None

    def writer(self) -> _Writer | None:
        """Return what writes the rows; None: not now, or never."""
        if self._writer is None and self._is_held:
            self._writer = self._registered()
            self._is_held = self._writer is not None
        return self._writer if self._writer is not None and self._writer.is_ready() else None

    def _registered(self) -> _Writer | None:
        layout = write_layout(self._format, self._columns)
        if layout is None:
            return None
        try:
            return _JsonWriter(self._columns, head=layout.head) if layout.wire is Wire.JSON else _StepWriter(layout)
        except Unsupported:
            return None

    def encode(
        self,
        batch: Batch,
        columns: Sequence[Column],
        keys: Bytes,
        loaded: Kernels,
        writer: _Writer,
        run: Callable[[Batch, Report], tuple[list[bytes | None], set[int]]],
        report: Report,
    ) -> Encoded:
        """Encode what is certain; `run` encodes the rest."""
        count = len(batch)
        key_starts, key_sizes = keys.addresses()
        room = count * writer.row_bytes(loaded) + int(np.maximum(key_sizes, 0).sum(dtype=np.int64))
        addresses, kept = np.zeros((len(columns), 4), np.int64), list[Any]()
        for c, column in enumerate(columns):
            write = writer.writers[c]
            vector = column.vector() if write is None else _written(column.objects(), write, kept)
            assert vector is not None
            parts = [vector.nulls, vector.data, vector.sizes, vector.unsure]
            if vector.sizes is not None:
                room += int(np.maximum(vector.sizes, 0).sum())
                if vector.unsure is not None:
                    room += _MAX_ESCAPED * int(vector.sizes[vector.unsure].sum())
            addresses[c] = [0 if part is None else part.ctypes.data for part in parts]
        rows = np.arange(count) if batch.nulls is None else np.flatnonzero(~batch.nulls)
        out = np.empty(room + loaded.json.SPARE_BYTES, np.uint8)
        new_keys, starts, sizes = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        end = writer.write(loaded, rows, (key_starts, key_sizes), addresses, out, (new_keys, starts, sizes))
        is_good = sizes >= 0
        if len(rows) == count and is_good.all():
            out = out[:end]
            return Encoded(None, Bytes.of_spans(out, new_keys, key_sizes), Bytes.of_spans(out, starts, sizes))
        certain = rows[is_good]
        parts_of = (new_keys[is_good], starts[is_good], sizes[is_good])
        return _completed(batch, keys, key_sizes, out[:end], certain, parts_of, run, report)


def _written(values: list[Any], write: Write, kept: list[Any]) -> Vector:
    """Return what a column's writer makes of its values, as texts; one that cannot be written has the size -1. `kept`: what they
    point into, to be held on to."""
    nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
    parts = np.flatnonzero(~nulls)
    buffer, starts, sizes = joined(write([value for value in values if value is not None]))
    data, lengths = np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
    data[parts], lengths[parts] = starts + buffer.ctypes.data, sizes
    vector = Vector(data, lengths, nulls if nulls.any() else None)
    kept += [buffer, vector]
    return vector


def _completed(
    batch: Batch,
    keys: Bytes,
    key_sizes: I32,
    out: Any,
    certain: I64,
    written: tuple[I64, I64, I32],
    run: Callable[[Batch, Report], tuple[list[bytes | None], set[int]]],
    report: Report,
) -> Encoded:
    """Encode the rows that are not certain exactly, and return all of them in order."""
    count = len(batch)
    is_open = np.ones(count, np.bool_)
    is_open[certain] = False
    rest = np.flatnonzero(is_open)
    places = rest.tolist()
    values, failed = run(batch.take(rest), lambda row, error: report(places[row], error))
    value_buffer, value_starts, value_sizes = joined(values)
    key_buffer, key_starts, _ = joined(keys.take(rest).objects())
    buffer = np.concatenate([out, key_buffer, value_buffer])
    all_keys, starts, sizes = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32)
    all_keys[certain], starts[certain], sizes[certain] = written
    all_keys[rest] = key_starts + len(out)
    starts[rest], sizes[rest] = value_starts + len(out) + len(key_buffer), value_sizes
    if not failed:
        return Encoded(None, Bytes.of_spans(buffer, all_keys, key_sizes), Bytes.of_spans(buffer, starts, sizes))
    is_kept = np.ones(count, np.bool_)
    is_kept[[places[row] for row in failed]] = False
    rows = np.flatnonzero(is_kept)
    return Encoded(
        rows, Bytes.of_spans(buffer, all_keys[rows], key_sizes[rows]), Bytes.of_spans(buffer, starts[rows], sizes[rows])
    )


def record_chunk(keys: Bytes, values: Bytes, times: I64, source: Chunk | None, causes: I64 | None) -> Chunk | None:
    """Return records as a chunk to be produced, with the headers of the records that caused them; None: they are objects, or
    few."""
    found = _in_one_buffer(keys, values)
    if found is None:
        return None
    buffer, key_starts, key_sizes, starts, sizes = found
    count = len(times)
    header_starts, header_counts = np.zeros(count, np.int64), np.zeros(count, np.int32)
    if source is not None and causes is not None and source.header_counts.any():
        header_counts = source.header_counts[causes]
        if header_counts.any():
            header_starts = source.header_starts[causes] + len(buffer)
            buffer = np.concatenate([buffer, source.buffer])
    return Chunk(
        "", -1, buffer, np.arange(count), times, key_starts, key_sizes, starts, sizes, header_starts, header_counts, count
    )


def _in_one_buffer(keys: Bytes, values: Bytes) -> tuple[npt.NDArray[np.uint8], I64, I32, I64, I32] | None:
    """Return one buffer, and starts and sizes of keys and of values in it; None: they are objects, or too few to copy."""
    if keys.has_spans and values.has_spans:
        (buffer, key_starts, key_sizes), (other, starts, sizes) = keys.spans(), values.spans()
        if buffer is other:
            return buffer, key_starts, key_sizes, starts, sizes
    loaded = loaded_kernels()
    if loaded is None or keys.count < FEW_ROWS or not (keys.has_spans or values.has_spans):
        return None
    (key_addresses, key_sizes), (addresses, sizes) = keys.addresses(), values.addresses()
    key_lengths, lengths = np.maximum(key_sizes, 0), np.maximum(sizes, 0)
    key_ends, ends = np.cumsum(key_lengths, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)
    behind, rows = int(key_ends[-1]), np.arange(keys.count)
    buffer = np.empty(behind + int(ends[-1]) + 1, np.uint8)
    loaded.slots.copy_keys(key_addresses, key_lengths, rows, buffer)
    loaded.slots.copy_keys(addresses, lengths, rows, buffer[behind:])
    return buffer, key_ends - key_lengths, key_sizes, behind + ends - lengths, sizes


def _exact_values(format: FormatSpec, columns: tuple[Field, ...]) -> Any:
    """Return (lists, is_null or None, count, report) -> bytes of each row, None where null or failed."""
    namespace = Namespace()
    names = [f"c{i}" for i in range(len(columns))]
    namespace.is_taken = lambda name: name in names or name in _RESERVED
    values = [Fragment(name, is_nullable=True, is_atom=True) for name in names]
    code = encode_fragment(namespace, "value", format, columns, values).code
    lines = ["def run(columns, is_null, count, report):", "    out = []", "    add = out.append"]
    for guard, taken in (("if is_null is None:", names), ("else:", [*names, "null"])):
        sources = ", ".join(["*columns", "is_null"] if guard == "else:" else ["*columns"])
        lines += [
            f"    {guard}",
            f"        for {', '.join(taken)}, in zip({sources}):" if taken else "        for _ in range(count):",
            "            try:",
            f"                add({f'None if null else {code}' if guard == 'else:' else code})",
            "            except Exception as error:",
            "                report(len(out), error)",
            "                add(None)",
        ]
    scope = dict(namespace.values)
    exec(compile("\n".join([*lines, "    return out\n"]), "<encoder>", "exec"), scope)
    return scope["run"]


def _exact_keys(format: FormatSpec, columns: tuple[Field, ...], window: Window | None) -> Any:
    """Return (lists of the key columns and (ends and) starts of windows, is_null, report) -> bytes of each key, None where null
    or failed."""
    namespace = Namespace()
    names = [f"c{i}" for i in range(len(columns))]
    namespace.is_taken = lambda name: name in names or name in _RESERVED
    namespace.add("pack", SESSION_BOUNDS.pack if isinstance(window, SessionWindow) else WINDOW_START.pack)
    bounds = [] if window is None else ["end", "start"] if isinstance(window, SessionWindow) else ["start"]
    values = [Fragment(name, is_nullable=True, is_atom=True) for name in names]
    code = encode_fragment(namespace, "key", format, columns, values).code
    if len(columns) == 1:
        code = f"(None if c0 is None else {code})"
    if bounds:
        code = f"({code} + pack({', '.join(bounds)}))"
    targets = ", ".join([*names, *bounds, "null"])
    lines = [
        "def run(columns, is_null, report):",
        "    out = []",
        "    add = out.append",
        f"    for {targets} in zip(*columns, is_null):",
        "        try:",
        f"            add(None if null else {code})",
        "        except Exception as error:",
        "            report(len(out), error)",
        "            add(None)",
        "    return out\n",
    ]
    scope = dict(namespace.values)
    exec(compile("\n".join(lines), "<keys>", "exec"), scope)
    return scope["run"]


_RESERVED = frozenset(
    {"run", "columns", "is_null", "count", "report", "out", "add", "null", "start", "error", "zip", "range", "Exception", "len"}
)
