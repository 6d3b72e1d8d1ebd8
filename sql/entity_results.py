"""Entities of the REST interface as results that can be shown: what a server says of what exists and of what was done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from logflume.log.schemas import STRING, Column

from .results import Message, Result, Rows

_ABOUT_THE_ANSWER = ("@type", "statementText", "warnings")


def results_of(entity: Mapping[str, Any]) -> list[Result]:
    """Return an entity as results; of one that is not known, all that it says.

    >>> [result] = results_of({"@type": "streams", "streams": [{"name": "S", "topic": "s"}]})
    >>> result.title, [c.name for c in result.columns], result.rows
    ('STREAMS', ['NAME', 'TOPIC'], (('S', 's'),))
    """
    match entity.get("@type"):
        case "currentStatus":
            status = entity["commandStatus"]
            return [Message(status["message"], status.get("queryId"))]
        case "sourceDescription":
            return _source(entity["sourceDescription"])
        case "source_descriptions":
            return [result for each in entity["sourceDescriptions"] for result in _source(each)]
        case "queryDescription":
            return [_explained(entity["queryDescription"])]
        case "describe_function":
            rows = [(each["signature"], each.get("description") or entity["description"]) for each in entity["functions"]]
            return [_rows(f"{entity['name']}, {entity['type'].lower()} function", ("VARIATION", "WHAT IT DOES"), rows)]
        case "type_list":
            return [_rows("TYPES", ("NAME", "TYPE"), [(name, type_text(t)) for name, t in entity["types"].items()])]
        case "connector_info":
            return [Message(f"Created connector {entity['info']['name']}")]
        case "drop_connector":
            return [Message(f"Dropped connector {entity['connectorName']}")]
        case "connector_description":
            return _connector(entity)
        case "rows":
            return [replace(_rows(entity["title"], entity["columns"], entity["rows"]), note=entity.get("note", ""))]
    return [_listed(entity)]


def _listed(entity: Mapping[str, Any]) -> Rows:
    """Return the one list of objects that an entity has, else its fields."""
    told = {name: value for name, value in entity.items() if name not in _ABOUT_THE_ANSWER}
    title = str(entity.get("@type", "")).upper().replace("_", " ")
    for value in told.values():
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            names = list(dict.fromkeys(name for each in value for name in each))
            return _rows(title, [name.upper() for name in names], [[each.get(name) for name in names] for each in value])
    return _rows(title, ("WHAT", "VALUE"), list(told.items()))


def _source(described: Mapping[str, Any]) -> list[Result]:
    kind, name = described["type"], described["name"]
    rows = [(field["name"], type_text(field["schema"]), _role(field, kind)) for field in described["fields"]]
    window = f", {described['windowType']} windows" if described.get("windowType") else ""
    found: list[Result] = [_rows(f"{kind} {name} over topic {described['topic']}{window}", ("COLUMN", "TYPE", "ROLE"), rows)]
    if described.get("extended"):
        facts = {key: value for key, value in described.items() if key not in ("fields", "readQueries", "writeQueries") and value}
        found.append(_rows(f"{name}: facts", ("WHAT", "VALUE"), list(facts.items())))
        queries = [*described.get("readQueries", ()), *described.get("writeQueries", ())]
        rows = [(each["id"], each.get("state"), each.get("deadLetterTopic", "")) for each in queries]
        found.append(_rows(f"{name}: queries", ("QUERY", "STATE", "DEAD LETTERS"), rows))
    return found


def _connector(entity: Mapping[str, Any]) -> list[Result]:
    status = entity["status"]
    kind, name, itself = status["type"].upper(), status["name"], status["connector"]
    facts = {
        "NAME": name,
        "TYPE": kind,
        "CLASS": entity["connectorClass"],
        "STATE": itself["state"],
        "ERROR": itself.get("trace"),
    }
    tasks = [(each["id"], each["state"], each.get("trace") or "") for each in status["tasks"]]
    sources = [(each["name"], each["type"], each["topic"]) for each in entity["sources"]]
    return [
        _rows(f"{kind} CONNECTOR {name}", ("WHAT", "VALUE"), [fact for fact in facts.items() if fact[1] is not None]),
        _rows(f"{name}: tasks", ("TASK", "STATE", "ERROR"), tasks),
        _rows(f"{name}: streams and tables", ("NAME", "KIND", "TOPIC"), sources),
    ]


def _role(field: Mapping[str, Any], kind: str) -> str:
    role = field.get("type") or ""
    return "PRIMARY KEY" if role == "KEY" and kind == "TABLE" else role


def _explained(described: Mapping[str, Any]) -> Rows:
    plan, topology = described["executionPlan"].splitlines(), described["topology"].splitlines()
    return _rows("EXPLAIN", ("PLAN",), [(line,) for line in ("Logical plan", *plan, "", "Topology", *topology)])


def type_text(schema: Mapping[str, Any]) -> str:
    """Return a type as statements write it.

    >>> type_text({"type": "MAP", "memberSchema": {"type": "STRUCT", "fields": [{"name": "A", "schema": {"type": "INTEGER"}}]}})
    'MAP<STRING, STRUCT<`A` INTEGER>>'
    """
    match schema["type"]:
        case "ARRAY":
            return f"ARRAY<{type_text(schema['memberSchema'])}>"
        case "MAP":
            return f"MAP<STRING, {type_text(schema['memberSchema'])}>"
        case "STRUCT":
            fields = (f"`{each['name']}` {type_text(each['schema'])}" for each in schema["fields"] or ())
            return f"STRUCT<{', '.join(fields)}>"
        case "DECIMAL" if schema.get("parameters"):
            return f"DECIMAL({schema['parameters']['precision']}, {schema['parameters']['scale']})"
        case kind:
            return str(kind)


def _rows(title: str, names: Iterable[str], rows: Iterable[Iterable[Any]]) -> Rows:
    return Rows(title, tuple(Column(name, STRING) for name in names), tuple(tuple(map(_text, row)) for row in rows))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
