"""What is answered: the JSON forms of schemas and settings in Confluent's interface. What is empty is left out."""

from __future__ import annotations

from typing import Any

import msgspec

from .guid import digest_of, guid_of
from .records import ConfigValue, SchemaValue, references_of


def guid_of_value(value: SchemaValue) -> str:
    """Return the GUID of a registered schema."""
    return guid_of(digest_of(value.schema, references_of(value), value.metadata, value.rule_set))


def schema_view(value: SchemaValue, *, text: str | None = None) -> dict[str, Any]:
    """Return a version of a subject; `text` in place of its own."""
    return {"subject": value.subject, "version": value.version, "id": value.id, **text_view(value, text=text)}


def text_view(value: SchemaValue, *, text: str | None = None) -> dict[str, Any]:
    """Return a schema without its place, as it is asked for by id."""
    view: dict[str, Any] = {"guid": guid_of_value(value)}
    if value.type != "AVRO":
        view["schemaType"] = value.type
    if value.references:
        view["references"] = msgspec.to_builtins(value.references)
    if value.metadata is not None:
        view["metadata"] = msgspec.to_builtins(value.metadata)
    if value.rule_set is not None:
        view["ruleSet"] = msgspec.to_builtins(value.rule_set)
    view["schema"] = value.schema if text is None else text
    if value.deleted:
        view["deleted"] = True
    return view


def config_view(value: ConfigValue, *, level_name: str = "compatibilityLevel") -> dict[str, Any]:
    """Return a configuration. What sets one is answered with its level under another name than what asks for it."""
    fields = msgspec.to_builtins(value)
    fields.pop("subject", None)
    level = fields.pop("compatibilityLevel", None)
    return fields if level is None else {level_name: level, **fields}
