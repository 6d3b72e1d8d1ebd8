"""Case files in ksqlDB's JSON form: loading, checking of their keys, spreading over formats and configs. Data only.

An unknown key is an error: a runner that overlooks what a case asks for would pass it for the wrong reason. In records it is
ignored, as ksqlDB's own runner does: cases are misspelt there, and what is compared is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from logflume.log import InvalidInput, near_matches

_FILE_KEYS = {"tests", "comments", "comment"}
_TEST_KEYS = {
    "name",
    "statements",
    "inputs",
    "outputs",
    "topics",
    "post",
    "expectedException",
    "format",
    "config",
    "properties",
    "enabled",
    "versions",
}
_REST_KEYS = {"responses", "expectedError", "inputConditions", "outputConditions", "testPullWithProtoFormat"}
IGNORED_KEYS = {"comment", "comments", "description", "note", "notes", "issue", "issues", "tracked by", "extraDescription"}
_TOPIC_KEYS = {
    "name",
    "partitions",
    "replicas",
    "keyFormat",
    "valueFormat",
    "keySchema",
    "valueSchema",
    "keySchemaId",
    "valueSchemaId",
    "keySchemaReferences",
    "valueSchemaReferences",
    "format",
    "schema",
}
_EXCEPTION_KEYS = {"type", "message", "cause", "causeMessage"}


class CaseFault(InvalidInput):
    """A case file that cannot be run as written."""

    code = "SQL_CASE"


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """An input or expected output. `timestamp_ms` None: any. `headers` None: none may be there (outputs)."""

    topic: str
    key: Any
    value: Any
    timestamp_ms: int | None
    window: Mapping[str, Any] | None
    headers: tuple[tuple[str, bytes | None], ...] | None


@dataclass(frozen=True, slots=True)
class CaseSchema:
    """A schema that is registered beforehand. `side`: key or value; `id` None: the next one; `references`: name and text."""

    side: str
    kind: str
    text: str
    id: int | None
    references: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CaseTopic:
    """A topic that exists beforehand."""

    name: str
    partitions: int
    replicas: int
    schemas: tuple[CaseSchema, ...]


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Which error must come: the last part of its Java type, a piece of its message, and one of its cause's."""

    kind: str | None
    message: str | None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One case, for one format and config. `fault`: why it cannot be run as written; such a case fails. `skip`: why not."""

    file: str
    name: str
    statements: tuple[str, ...]
    inputs: tuple[CaseRecord, ...]
    outputs: tuple[CaseRecord, ...]
    topics: tuple[CaseTopic, ...]
    error: ExpectedError | None
    properties: Mapping[str, str]
    post: Mapping[str, Any]
    is_enabled: bool = True
    fault: str = ""
    skip: str = ""

    @property
    def id(self) -> str:
        return f"{self.file} - {self.name}"


def load_cases(path: Path) -> Iterator[Case]:
    """Yield the cases of a file, or of all `*.json` files below a folder in order of their paths.

    Raises:
        CaseFault: not such a file, or a key that this runner does not know.
    """
    if path.is_dir():
        for each in sorted(path.rglob("*.json")):
            yield from load_cases(each)
        return
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as e:
        raise CaseFault(f"{path}: not a JSON file of cases: {e}") from None
    if not isinstance(document, dict) or not isinstance(document.get("tests"), list):
        raise CaseFault(f"{path}: expected an object with a list `tests`")
    _check_keys(document, _FILE_KEYS, str(path))
    for test in document["tests"]:
        yield from _spread(test, path)


def _check_keys(found: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in found:
        if key not in known and key not in IGNORED_KEYS:
            near = near_matches(key, known)
            raise CaseFault(f"{where}: unknown key {key!r}{f'; did you mean {near[0]!r}?' if near else ''}")


def _spread(test: Mapping[str, Any], path: Path) -> Iterator[Case]:
    name = str(test.get("name", ""))
    if test.keys() & _REST_KEYS:
        yield replace(_broken(path, name, ""), skip="a case of the REST interface, which needs the HTTP server")
        return
    try:
        _check_keys(test, _TEST_KEYS, f"{path.name}: {name}")
    except CaseFault as e:
        yield _broken(path, name, str(e))
        return
    for format in test.get("format") or [None]:
        for config in test.get("config") or [None]:
            shown = name + (f" - {format}" if format else "") + (f" - {config}" if config else "")
            try:
                yield _case(test, path, shown, format, config)
            except CaseFault as e:
                yield _broken(path, shown, str(e))


def _broken(path: Path, name: str, fault: str) -> Case:
    return Case(path.stem, name, (), (), (), (), None, {}, {}, fault=fault)


def _case(test: Mapping[str, Any], path: Path, name: str, format: str | None, config: str | None) -> Case:
    where = f"{path.name}: {name}"
    statements = tuple(s if format is None else s.replace("{FORMAT}", format) for s in test.get("statements", ()))
    if not statements:
        raise CaseFault(f"{where}: no statements")
    properties = {k: _property(v, config) for k, v in (test.get("properties") or {}).items()}
    error = test.get("expectedException")
    if error is not None:
        _check_keys(error, _EXCEPTION_KEYS, where)
    return Case(
        path.stem,
        name,
        statements,
        tuple(_record(r, where) for r in test.get("inputs") or ()),
        tuple(_record(r, where) for r in test.get("outputs") or ()),
        tuple(_topic(t, where) for t in test.get("topics") or ()),
        None if error is None else _expected_error(error),
        properties,
        test.get("post") or {},
        test.get("enabled", True) is not False,
    )


def _expected_error(error: Mapping[str, Any]) -> ExpectedError:
    """Return what error is expected: of the last part of the type's name."""
    kind = str(error.get("type", "")).rpartition(".")[2] or None
    return ExpectedError(kind, error.get("message"), error.get("causeMessage"))


def _property(value: Any, config: str | None) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return config if text == "{CONFIG}" and config is not None else text


def _record(record: Mapping[str, Any], where: str) -> CaseRecord:
    if "topic" not in record:
        raise CaseFault(f"{where}: a record without a topic")
    if "value" not in record:
        near = near_matches("value", record)
        raise CaseFault(f"{where}: a record without a value{f'; it has {near[0]!r}' if near else ''}")
    window = record.get("window")
    if window is not None:
        _check_keys(window, {"start", "end", "type"}, f"{where}: window")
    headers = record.get("headers")
    timestamp = record.get("timestamp")
    return CaseRecord(
        record["topic"],
        record.get("key"),
        record.get("value"),
        None if timestamp is None else int(timestamp),
        window,
        None if headers is None else tuple(_header(h) for h in headers),
    )


def _header(header: Mapping[str, Any]) -> tuple[str, bytes | None]:
    import base64

    value = header.get("VALUE")
    try:
        return (header["KEY"], None if value is None else base64.b64decode(value, validate=True))
    except ValueError:
        raise CaseFault(f"the header {header['KEY']!r} is in base64, found {value!r}") from None


def _topic(topic: Mapping[str, Any], where: str) -> CaseTopic:
    _check_keys(topic, _TOPIC_KEYS, f"{where}: topic")
    both = topic.get("format")
    schemas = [_case_schema(topic, side, topic.get(f"{side}Format") or both, where) for side in ("key", "value")]
    found = tuple(each for each in schemas if each is not None)
    return CaseTopic(topic["name"], int(topic.get("partitions") or 1), int(topic.get("replicas") or 1), found)


_SCHEMA_KINDS = {"AVRO": "AVRO", "JSON": "JSON", "JSON_SR": "JSON", "PROTOBUF": "PROTOBUF"}


def _case_schema(topic: Mapping[str, Any], side: str, format: str | None, where: str) -> CaseSchema | None:
    """Return the schema of a side; without a format it is an Avro schema."""
    schema = topic.get(f"{side}Schema")
    if schema is None and side == "value":
        schema = topic.get("schema")
    if schema is None:
        return None
    name = (format or "AVRO").upper()
    if name not in _SCHEMA_KINDS:
        raise CaseFault(f"{where}: a schema for the format {name}, which has none")
    references = tuple((r["name"], _schema_text(r["schema"])) for r in topic.get(f"{side}SchemaReferences") or ())
    schema_id = topic.get(f"{side}SchemaId")
    return CaseSchema(side, _SCHEMA_KINDS[name], _schema_text(schema), None if schema_id is None else int(schema_id), references)


def _schema_text(schema: Any) -> str:
    """Return a schema as text; a name stands for itself."""
    if isinstance(schema, str):
        return schema
    return json.dumps(schema, default=lambda number: int(number) if number == number.to_integral_value() else float(number))
