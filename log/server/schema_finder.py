"""Asks a registry whether schemas are of the subjects that topics demand (`broker/schema_ids.py`); blocks."""

from __future__ import annotations

import json
from typing import Any

from logflume.log.broker.ports import Demand, SchemaRef
from logflume.log.schemas.proto_compiler import compile_proto
from logflume.log.schemas.proto_schema import messages_of
from logflume.log.schemas.registries import HttpRegistry, RegisteredSchema, SchemaNotFound

_TIMEOUT_S = 2.0


class RegistryFinder:
    """A registry behind Confluent's REST interface."""

    def __init__(self, url: str) -> None:
        self._registry = HttpRegistry(url, timeout_s=_TIMEOUT_S)

    def is_met(self, demand: Demand, ref: SchemaRef, /) -> bool:
        """Return whether a schema is of the subject that is demanded. Raises RegistryUnavailable, RegistryRefused."""
        try:
            found = self._registry.by_guid(ref.guid) if ref.guid else self._registry.by_id(ref.id)
            subjects = self._registry.subjects_of(found.id)
        except SchemaNotFound:
            return False
        match demand.strategy:
            case "TopicNameStrategy":
                return f"{demand.topic}-{demand.side}" in subjects
            case "RecordNameStrategy":
                return not subjects.isdisjoint(record_names(found))
            case _:
                return not subjects.isdisjoint(f"{demand.topic}-{name}" for name in record_names(found))


def record_names(registered: RegisteredSchema) -> frozenset[str]:
    """Return what a schema's subject may be called after.

    >>> record_names(RegisteredSchema(1, "AVRO", '{"type": "record", "name": "Order", "namespace": "shop", "fields": []}'))
    frozenset({'shop.Order'})
    """
    if registered.kind == "PROTOBUF":
        file, _ = messages_of(compile_proto(registered.text, registered.texts))
        return frozenset(message.full_name for message in file.message_types_by_name.values())
    tree: Any = json.loads(registered.text)
    if not isinstance(tree, dict):
        return frozenset()
    name, namespace = tree.get("title" if registered.kind == "JSON" else "name"), tree.get("namespace")
    if not isinstance(name, str):
        return frozenset()
    return frozenset({f"{namespace}.{name}" if registered.kind == "AVRO" and namespace and "." not in name else name})
