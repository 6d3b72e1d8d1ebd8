"""Protobuf schemas as text -> descriptors, by the registry's own parser. What was compiled is kept."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from logflume.log.errors import DecodeError


@lru_cache(maxsize=1024)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return a schema and all that it imports as a FileDescriptorSet, imports first; the schema's own file is the last.

    Raises:
        DecodeError: not a Protobuf schema; the message is protoc's, with line and column.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from logflume.log.registry.schemas.parsed import InvalidSchema, Limits, Resolved
    from logflume.log.registry.schemas.protobuf import parse

    try:
        found = parse(text, [Resolved(name, content) for name, content in references], limits=Limits())
    except InvalidSchema as error:
        raise DecodeError(f"not a Protobuf schema: {error}") from None
    return FileDescriptorSet(file=[*found.imports, found.file])
