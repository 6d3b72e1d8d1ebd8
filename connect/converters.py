"""From rows to the bytes of a record and back, by the serdes of `log.schemas`; windowed keys get their columns of time here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from logflume.log import Chunk, DecodeError, InvalidInput, TopicPartition
from logflume.log.schemas import (
    BIGINT,
    INTEGER,
    TIMESTAMP,
    Column,
    CompiledSerde,
    FormatSpec,
    FrameSplitter,
    Kind,
    Row,
    format_of,
    framed_by_headers,
    may_have_schema_ids,
    serde,
)

from .api import RowSchema, SinkBatch
from .config import Config
from .errors import ConfigErrors, Problem
from .registry_options import registered_format

_FORMATS = {
    "json": "JSON",
    "string": "KAFKA",
    "delimited": "DELIMITED",
    "kafka": "KAFKA",
    "bytes": "KAFKA",
    "avro": "AVRO",
    "protobuf": "PROTOBUF",
    "json_sr": "JSON_SR",
    "none": "NONE",
}
_WINDOW = struct.Struct(">q")

Encode = Callable[[Row | None], bytes | None]
Decode = Callable[[bytes | None], Row | None]


def make_encoder(config: Config, side: str, columns: tuple[Column, ...], *, where: str) -> Encode:
    """Return a source's encoder of one side ("key", "value"). Raises ConfigErrors when the converter cannot hold the columns."""
    return _serde(config, side, columns, where, config.text("topic")).encode


def _serde(config: Config, side: str, columns: tuple[Column, ...], where: str, topic: str = "") -> CompiledSerde:
    name = config.text(f"{side}.converter")
    wanted = {"string": Kind.STRING, "bytes": Kind.BYTES}.get(name)
    try:
        if wanted is not None and any(column.type.kind is not wanted for column in columns):
            raise InvalidInput(f"converter {name!r} takes one column of type {wanted}, found {columns[0].type}")
        return serde(_format(config, side, columns, topic), () if name == "none" else columns)
    except InvalidInput as error:
        raise ConfigErrors(where, [Problem(f"{side}.converter", str(error))]) from error


def _format(config: Config, side: str, columns: tuple[Column, ...], topic: str) -> FormatSpec:
    name = config.text(f"{side}.converter")
    spec = FormatSpec(_FORMATS[name], delimiter=config.text("delimiter"))
    if side == "key" and len(columns) == 1 and name in ("avro", "json_sr"):
        spec = replace(spec, is_wrapped=False)
    return spec if format_of(spec.name).schemas is None else registered_format(spec, config, side, topic)


def frame_splitter(config: Config) -> FrameSplitter | None:
    """Return what makes headers of the frames of a source's values; None: they stay where they are."""
    spec = _format(config, "value", (), config.text("topic"))
    return FrameSplitter("value", spec.registry) if spec.has_ids_in_headers else None


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record that could not be decoded: its index in the chunk, the stage (KEY_CONVERTER or VALUE_CONVERTER) and the cause."""

    index: int
    stage: str
    error: InvalidInput


class ChunkDecoder:
    """Decodes chunks into sink batches, by the columns and converters of a sink's config."""

    def __init__(self, config: Config, *, where: str) -> None:
        key, value = config.columns("key.columns"), config.columns("value.columns")
        self._decode_key: Decode | None = _serde(config, "key", key, where).decode if key else None
        self._decode_value: Decode = _serde(config, "value", value, where).decode
        self._registries = {
            side: spec.registry
            for side, columns in (("key", key), ("value", value))
            if columns and format_of((spec := _format(config, side, columns, "")).name).schemas is not None
        }
        self._is_windowed = config.flag("key.windowed")
        self._window_size_ms = config.integer("window.size.ms")
        self._extra = [part for part in ("timestamp", "offset", "partition") if config.text(f"record.{part}.column")]
        types = {"timestamp": TIMESTAMP, "offset": BIGINT, "partition": INTEGER}
        if self._is_windowed:
            key = (*key, Column(config.text("window.start.column"), TIMESTAMP))
            if self._window_size_ms:
                key = (*key, Column(config.text("window.end.column"), TIMESTAMP))
        extra = tuple(Column(config.text(f"record.{part}.column"), types[part]) for part in self._extra)
        self.schema = RowSchema(key=key, value=value + extra)

    def decode(self, chunk: Chunk) -> tuple[SinkBatch, list[Undecodable]]:
        """Return the batch of the records that could be decoded, and the others."""
        failed: dict[int, Undecodable] = {}
        values = self._side(self._framed(chunk, "value", failed), self._decode_value, "VALUE_CONVERTER", failed)
        keys: list[Row | None] = [None] * len(chunk)
        if self._decode_key is not None:
            framed = self._framed(chunk, "key", failed)
            keys = self._side(framed, self._windowed(self._decode_key), "KEY_CONVERTER", failed)
        if self._extra:
            values = self._with_extra(chunk, values)
        offsets, times = chunk.offsets, chunk.timestamps_ms
        if failed:
            keep = np.array([index for index in range(len(chunk)) if index not in failed], np.int64)
            keys, values = [keys[i] for i in keep], [values[i] for i in keep]
            offsets, times = offsets[keep], times[keep]
        batch = SinkBatch(
            partition=TopicPartition(chunk.topic, chunk.partition),
            schema=self.schema,
            offsets=offsets,
            timestamps_ms=times,
            keys=keys,
            values=values,
            next_offset=chunk.next_offset,
        )
        return batch, [failed[index] for index in sorted(failed)]

    def _side(self, data: Sequence[bytes | None], decode: Decode, stage: str, failed: dict[int, Undecodable]) -> list[Row | None]:
        try:
            return [decode(each) for each in data]
        except InvalidInput:
            pass
        rows: list[Row | None] = []
        for index, each in enumerate(data):
            try:
                rows.append(decode(each))
            except InvalidInput as error:
                rows.append(None)
                failed.setdefault(index, Undecodable(index, stage, error))
        return rows

    def _framed(self, chunk: Chunk, side: str, failed: dict[int, Undecodable]) -> Sequence[bytes | None]:
        """Return keys or values, those with a schema id in their headers behind the frame that it stands for."""
        data = chunk.keys() if side == "key" else chunk.values()
        registry = self._registries.get(side)
        if registry is None or not chunk.header_counts.any() or not may_have_schema_ids(chunk.buffer.data, side):
            return data
        made: list[bytes | None] = []
        for index, (each, headers) in enumerate(zip(data, chunk.headers(), strict=True)):
            try:
                made.append(framed_by_headers(each, headers, side, registry))
            except InvalidInput as error:
                made.append(None)
                failed[index] = Undecodable(index, f"{side.upper()}_CONVERTER", error)
        return made

    def _windowed(self, decode: Decode) -> Decode:
        if not self._is_windowed:
            return decode
        size_ms = self._window_size_ms

        def decode_windowed(data: bytes | None) -> Row | None:
            if data is None:
                return None
            if len(data) < _WINDOW.size:
                raise DecodeError(f"expected a windowed key (at least {_WINDOW.size} bytes), found {len(data)} bytes")
            start_ms = _WINDOW.unpack_from(data, len(data) - _WINDOW.size)[0]
            row = decode(data[: -_WINDOW.size])
            times = (start_ms, start_ms + size_ms) if size_ms else (start_ms,)
            return None if row is None else (*row, *times)

        return decode_windowed

    def _with_extra(self, chunk: Chunk, values: list[Row | None]) -> list[Row | None]:
        columns = {
            "timestamp": chunk.timestamps_ms.tolist(),
            "offset": chunk.offsets.tolist(),
            "partition": [chunk.partition] * len(chunk),
        }
        extra = zip(*(columns[part] for part in self._extra), strict=True)
        return [None if value is None else (*value, *more) for value, more in zip(values, extra, strict=True)]
