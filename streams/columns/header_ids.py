"""Values whose schema ids stand in record headers: they are decoded by the serde, behind the frame that they stand for, and
written without a frame. Ids that came with a record speak of what it was, and never go out with what it has become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logflume.log import DecodeError
from logflume.log.records import Chunk
from logflume.log.schemas import Column as Field
from logflume.log.schemas import (
    FormatSpec,
    FrameSplitter,
    Kind,
    framed_by_headers,
    may_have_schema_ids,
    without_schema_ids,
)


class HeaderIds:
    """Finds and frames the values of one source. Remembers what was found of the buffer that was looked at last."""

    def __init__(self, registry: str) -> None:
        self._registry = registry
        self._looked_at: tuple[Any, bool] = (None, False)

    def are_in(self, chunk: Chunk, start: int, stop: int) -> bool:
        """Return whether records may have such headers: kernels must not read those, for a payload may begin as a frame does."""
        if not chunk.header_counts[start:stop].any():
            return False
        buffer, found = self._looked_at
        if buffer is not chunk.buffer:
            found = may_have_schema_ids(chunk.buffer.data, "value")
            self._looked_at = (chunk.buffer, found)
        return found

    def framed(self, chunk: Chunk) -> tuple[list[bytes | None], dict[int, DecodeError]]:
        """Return the values, and what is wrong with headers by row; the value there is empty, which no serde takes."""
        made: list[bytes | None] = []
        wrong: dict[int, DecodeError] = {}
        for row, (data, headers) in enumerate(zip(chunk.values(), chunk.headers(), strict=True)):
            try:
                made.append(framed_by_headers(data, headers, "value", self._registry))
            except DecodeError as error:
                made.append(b"")
                wrong[row] = error
        return made, wrong


Headers = tuple[tuple[str, bytes | None], ...]


class OutputHeaders:
    """Puts schema ids into headers of one output's records, and takes away those of the records that caused them."""

    def __init__(self, format: FormatSpec, columns: tuple[Field, ...], *, is_key_raw: bool) -> None:
        """`is_key_raw`: keys go out as they came, and so do the ids of their schemas."""
        self._splitter = FrameSplitter("value", format.registry) if format.has_ids_in_headers else None
        is_value_raw = format.name == "KAFKA" and [column.type.kind for column in columns] == [Kind.BYTES]
        self._dropped = [side for side, is_raw in (("key", is_key_raw), ("value", is_value_raw)) if not is_raw]

    def concern(self, chunk: Chunk | None) -> bool:
        """Return whether records that a chunk caused may need other headers than its own."""
        if self._splitter is not None:
            return True
        if chunk is None or not self._dropped or not chunk.header_counts.any():
            return False
        return any(may_have_schema_ids(chunk.buffer.data, side) for side in self._dropped)

    def made(self, values: list[bytes | None], headers: Sequence[Headers] | None) -> tuple[list[bytes | None], list[Headers]]:
        """Return the values and headers of N records; `headers`: of what caused them. Raises RegistryUnavailable."""
        before = [()] * len(values) if headers is None else headers
        made: list[Headers] = [without_schema_ids(each, self._dropped) for each in before]
        if self._splitter is None:
            return values, made
        bare: list[bytes | None] = []
        for place, value in enumerate(values):
            if value is None:
                bare.append(None)
            else:
                payload, header = self._splitter.split(value)
                bare.append(payload)
                made[place] = (*made[place], header)
        return bare, made
