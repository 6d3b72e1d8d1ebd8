"""Schema ids in record headers, the newer form of Confluent's serializers: the payload has no frame, and `__value_schema_id` or
`__key_schema_id` holds a one and the schema's GUID (or a zero and its id), and behind that Protobuf's message indexes.

The serdes know frames alone: what was read gets the frame that its header stands for, and what is written loses its frame."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from logflume.log.errors import DecodeError, InvalidInput

from .frames import FRAME_SIZE_BYTES, frame, read_frame, read_message_indexes
from .registries import registry_at

Headers = Sequence[tuple[str, bytes | None]]
SCHEMA_ID_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
_GUID_END = 17
_PATTERNS = {side: re.compile(name.encode()) for side, name in SCHEMA_ID_HEADERS.items()}


def may_have_schema_ids(buffer: memoryview, side: str) -> bool:
    """Return whether records whose headers lie in a buffer may have schema ids in them; a look at the bytes, so it may be wrong
    where it says yes."""
    return _PATTERNS[side].search(buffer) is not None


def framed_by_headers(data: bytes | None, headers: Headers, side: str, registry: str) -> bytes | None:
    """Return a payload behind the frame that its headers stand for; the payload itself where they do not name a schema.

    Raises:
        DecodeError: a header that names no schema. RegistryUnavailable.
    """
    name = SCHEMA_ID_HEADERS[side]
    found = next((value for header, value in reversed(headers) if header == name), None)
    if found is None or data is None:
        return data
    if found[:1] == b"\x01" and len(found) >= _GUID_END:
        guid = str(uuid.UUID(bytes=bytes(found[1:_GUID_END])))
        return frame(registry_at(registry).by_guid(guid).id) + found[_GUID_END:] + data
    if found[:1] == b"\x00" and len(found) >= FRAME_SIZE_BYTES:
        return found + data
    raise DecodeError(f"the header {name} holds a one and a GUID, or a zero and a schema id; found {bytes(found[:20])!r}")


def without_schema_ids(headers: Headers, sides: Sequence[str]) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers without the schema ids of some sides: they speak of another payload."""
    names = [SCHEMA_ID_HEADERS[side] for side in sides]
    return tuple([(name, value) for name, value in headers if name not in names])


class FrameSplitter:
    """Turns frames of one side and registry into headers. Remembers the schemas it met. Thread-safe."""

    def __init__(self, side: str, registry: str) -> None:
        self._name = SCHEMA_ID_HEADERS[side]
        self._registry = registry
        self._known: dict[int, tuple[bytes, bool]] = {}

    def split(self, data: bytes) -> tuple[bytes, tuple[str, bytes]]:
        """Return the payload and the header of framed bytes.

        Raises:
            InvalidInput: the registry has no GUIDs. RegistryUnavailable.
        """
        schema_id = read_frame(data)
        known = self._known.get(schema_id)
        if known is None:
            known = self._known[schema_id] = self._find(schema_id)
        guid, has_indexes = known
        at = read_message_indexes(data, FRAME_SIZE_BYTES)[1] if has_indexes else FRAME_SIZE_BYTES
        return data[at:], (self._name, guid + data[FRAME_SIZE_BYTES:at])

    def _find(self, schema_id: int) -> tuple[bytes, bool]:
        found = registry_at(self._registry).by_id(schema_id)
        if not found.guid:
            raise InvalidInput(
                f"the schema registry tells no GUID of schema {schema_id}, so its id cannot be written into headers: "
                "write it before the payload (has_ids_in_headers=False)"
            )
        return b"\x01" + uuid.UUID(found.guid).bytes, found.kind == "PROTOBUF"
