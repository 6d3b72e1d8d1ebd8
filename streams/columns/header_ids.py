"""Values whose schema ids stand in record headers: they are decoded by the serde, behind the frame that they stand for."""

from __future__ import annotations

from typing import Any

from logflume.log import DecodeError
from logflume.log.records import Chunk
from logflume.log.schemas import framed_by_headers, may_have_schema_ids


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
