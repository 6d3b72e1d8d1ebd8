"""The one serde interface that streams, sql and connect share (architecture, D12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .types import Column, Kind

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """How one side (key or value) of a topic is written: data, so that a plan can be stored, compared and shipped to Spark.

    Attributes:
        name: one of those registered in `logflume.log.schemas.formats`.
        is_wrapped: for a single column, whether it is written as a record with one field (True) or bare (False).
        delimiter: DELIMITED only, one character.
        registry: where the schemas are, `http(s)://host:port` or `mock://scope`; formats without a registry leave it empty.
        subject: the subject under which the schema of what is written is registered; empty: by `naming`.
        naming: how a subject is called: TOPIC (`orders-value`), RECORD (`full_name`), TOPIC_RECORD (`orders-` and `full_name`).
        schema_id: write with this registered schema; 0: with one made from the columns, registered under `subject`.
        uses_latest: write with the newest schema that `subject` has when writing begins, and register nothing.
        registers: whether a schema made from the columns is registered; else `subject` must have it.
        normalizes: schemas are registered and looked up in the registry's normal form.
        is_strict: a schema that was named, or the newest, must have a field for every column, of a type that holds its values,
            and a column for every field without a default; else values are left out, and rows that do not fit are refused.
        has_ids_in_headers: schema ids of values are written into record headers, as GUIDs, and payloads have no frame; both forms
            are read. It is for whoever makes records: a serde frames always.
        full_name: the name of the record or message, namespace included; empty: the format's own.
        is_plain: JSON only, as a person writes it: times as ISO 8601 text, decimals without zeros that only fill their scale.
        nullables: PROTOBUF only, how a null scalar is told from its default: OPTIONAL, WRAPPER, or empty for not at all.
    """

    name: str
    is_wrapped: bool = True
    delimiter: str = ","
    registry: str = ""
    subject: str = ""
    naming: str = "TOPIC"
    schema_id: int = 0
    uses_latest: bool = False
    registers: bool = True
    normalizes: bool = False
    is_strict: bool = True
    has_ids_in_headers: bool = False
    full_name: str = ""
    nullables: str = ""
    is_plain: bool = False

    def writes_text(self, kind: Kind) -> bool:
        """Return whether numbers of this kind are written as text."""
        return self.is_plain and kind in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME)


class Serde(Protocol):
    """Encodes and decodes the rows of one side of a topic. Stateless and thread-safe."""

    @property
    def spec(self) -> FormatSpec: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    def decode(self, data: bytes | None, /) -> Row | None:
        """Return the row (aligned with `columns`), None for null bytes.

        Raises:
            DecodeError: the bytes do not fit the format or the columns.
        """
        ...

    def encode(self, row: Row | None, /) -> bytes | None:
        """Return the bytes of a row, None for None. Raises InvalidInput when a value cannot be written."""
        ...
