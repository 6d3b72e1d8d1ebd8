"""JSON texts as payloads of a registered schema: what `logflume produce --format avro` writes, and `consume --registry` shows."""

from __future__ import annotations

import json
from dataclasses import replace

from logflume.log.errors import DecodeError, InvalidInput, UnknownName

from .formats import format_of, schema_type, serde
from .registries import SchemaNotFound, registry_at
from .serdes import FormatSpec
from .types import Column, Kind


class SchemaWriter:
    """Writes JSON values with one registered schema. Times are ISO 8601 or numbers, decimals numbers or text, bytes base64."""

    def __init__(self, spec: FormatSpec, schema: str = "") -> None:
        """`schema`: a text that is registered under the format's subject; empty: the newest that the subject has.

        Raises:
            InvalidInput: a format without schemas; no schema yet. RegistryRefused, RegistryUnavailable.
            DecodeError: a schema that columns cannot hold.
        """
        schemas = format_of(spec.name).schemas
        if schemas is None:
            raise InvalidInput(f"the format {spec.name} has no schemas in a registry")
        registry = registry_at(spec.registry)
        try:
            schema_id = registry.register(spec.subject, schemas.kind, schema) if schema else registry.latest(spec.subject).id
        except SchemaNotFound as error:
            raise InvalidInput(f"{error}; --schema FILE registers one") from None
        self.schema_id = schema_id
        spec = replace(spec, schema_id=schema_id)
        type = schema_type(spec)
        is_record = type.kind is Kind.STRUCT
        columns = type.fields if is_record else (Column("value", type),)
        self._names = {column.name for column in columns} if is_record else None
        self._decode = serde(FormatSpec("JSON", is_wrapped=is_record), columns).decode
        self._encode = serde(replace(spec, is_wrapped=is_record), columns).encode

    def write(self, text: bytes) -> bytes | None:
        """Return the payload of a JSON text; `null` is a null payload.

        Raises:
            InvalidInput: no JSON, a field that the schema does not have, or a value that does not fit it. RegistryUnavailable.
        """
        if self._names is not None:
            self._check_names(text, self._names)
        return self._encode(self._decode(text))

    def _check_names(self, text: bytes, names: set[str]) -> None:
        """Refuse what would be left out."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"expected a JSON object, found {text[:60]!r}: {error}") from None
        if not isinstance(found, dict | None):
            raise DecodeError(f"expected a JSON object, found {text[:60]!r}")
        for name in found or ():
            if name not in names:
                raise UnknownName(f"field of schema {self.schema_id}", name, names)
