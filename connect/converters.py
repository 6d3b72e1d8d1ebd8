"""From rows to the bytes of a record and back, by the serdes of `log.schemas`; windowed keys get their columns of time here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from logflume.log import Chunk, DecodeError, InvalidInput, TopicPartition
from logflume.log.schemas import BIGINT, INTEGER, TIMESTAMP, Column, CompiledSerde, FormatSpec, Kind, Row, of_topic, serde

from .api import RowSchema, SinkBatch
from .config import Config
from .errors import ConfigErrors, Problem

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
        spec = FormatSpec(_FORMATS[name], delimiter=config.text("delimiter"))
        if side == "key" and len(columns) == 1 and name in ("avro", "json_sr"):
            spec = replace(spec, is_wrapped=False)
        return serde(of_topic(spec, topic, side, config.text("schema.registry.url")), () if name == "none" else columns)
    except InvalidInput as error:
        raise ConfigErrors(where, [Problem(f"{side}.converter", str(error))]) from error


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
        values = self._side(chunk.values(), self._decode_value, "VALUE_CONVERTER", failed)
        keys: list[Row | None] = [None] * len(chunk)
        if self._decode_key is not None:
            keys = self._side(chunk.keys(), self._windowed(self._decode_key), "KEY_CONVERTER", failed)
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
