"""Keys whose schemas are in a registry: the same key written with two schemas is two byte strings, and has to be one key.

Each is brought to the oldest version of its subject that holds all of it. So nothing is done to keys of a topic whose keys have
one schema, and what is chosen never changes as versions are added. A key that no older version holds, or that has fields which
the application has no column for, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import Column as Field
from logflume.log.schemas import FormatSpec, SchemaNotFound, format_of, frame_schema_id, registry_at, serde

from .column import Bytes

_HEAD_BYTES = 5
_MAX_VERSIONS = 64
"""Versions that are tried for a key."""
_KEPT_KEYS = 10_000

Encode = Callable[[tuple[object, ...] | None], bytes | None]


class KeyForms:
    """Brings the keys of one source to one form. Invariant: what is remembered of a key is what would be found again."""

    def __init__(self, format: FormatSpec, columns: tuple[Field, ...]) -> None:
        self._format, self._columns = format, columns
        self._decode = serde(format, columns).decode
        self._encoders: dict[int, Encode] = {}
        self._ids: list[int] = []
        self._first: npt.NDArray[np.uint8] | None = None
        self._asked: set[int] = set()
        self._known: dict[bytes, bytes] = {}

    @classmethod
    def of(cls, format: FormatSpec, columns: tuple[Field, ...]) -> KeyForms | None:
        """Return it for keys whose schemas are in a registry, under a subject."""
        return cls(format, columns) if columns and format.subject and format_of(format.name).schemas is not None else None

    def unified(self, keys: Bytes) -> Bytes:
        """Return N keys, each in its one form.

        Raises:
            RegistryUnavailable.
        """
        buffer, starts, sizes = keys.spans()
        framed = np.flatnonzero(sizes >= _HEAD_BYTES)
        if not len(framed):
            return keys
        heads = buffer[starts[framed][:, None] + np.arange(_HEAD_BYTES)]
        if self._first is None:
            self._look(_id_in(heads[0].tobytes()))
        others = framed if self._first is None else framed[(heads != self._first).any(axis=1)]
        if self._first is None or not len(others):
            return keys
        values = list(keys.objects())
        for row in others.tolist():
            key = values[row]
            assert key is not None
            found = self._known.get(key)
            if found is None:
                if len(self._known) >= _KEPT_KEYS:
                    self._known.clear()
                found = self._known[key] = self._oldest(key)
            values[row] = found
        return Bytes.of_objects(values)

    def _look(self, schema_id: int) -> None:
        """Ask for the versions of the subject, once for each id that is not among them."""
        if schema_id in self._asked:
            return
        registry = registry_at(self._format.registry)
        try:
            numbers = registry.versions(self._format.subject)[:_MAX_VERSIONS]
            self._ids = [registry.version(self._format.subject, number).id for number in numbers]
        except SchemaNotFound:
            self._ids = []
        if len(self._asked) < _KEPT_KEYS:
            self._asked.add(schema_id)
        if self._ids:
            self._first = np.frombuffer(b"\0" + self._ids[0].to_bytes(4, "big"), np.uint8)

    def _oldest(self, key: bytes) -> bytes:
        try:
            own = frame_schema_id(key)
            if own not in self._ids:
                self._look(own)
            row = self._decode(key)
            if row is None or self._encoder(own)(row) != key:
                return key
        except (DecodeError, InvalidInput, SchemaNotFound):
            return key
        for schema_id in self._ids:
            if schema_id == own:
                break
            try:
                written = self._encoder(schema_id)(row)
                if written is not None and self._decode(written) == row:
                    return written
            except (DecodeError, InvalidInput, SchemaNotFound):
                continue
        return key

    def _encoder(self, schema_id: int) -> Encode:
        found = self._encoders.get(schema_id)
        if found is None:
            spec = replace(self._format, schema_id=schema_id, uses_latest=False, is_strict=False, has_ids_in_headers=False)
            found = self._encoders[schema_id] = serde(spec, self._columns).encode
        return found


def _id_in(head: bytes) -> int:
    """Return the schema id in the first five bytes, whatever they are."""
    return int.from_bytes(head[1:], "big")
