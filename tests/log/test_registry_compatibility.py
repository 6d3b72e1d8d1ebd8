"""What may follow what: one case a rule for each language, and who is compared with whom at each level."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from logflume.log.registry.compatibility import LEVELS, Earlier, check, differences
from logflume.log.registry.guid import digest_of, guid_of
from logflume.log.registry.records import Metadata, Reference, Rule, RuleSet
from logflume.log.registry.schemas import InvalidSchema, ParsedSchema, parse


def avro(*fields: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
        **more,
    }


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def rules_against(type_: str, old: Any, new: Any, *, policy: str = "STRICT") -> list[tuple[str, str]]:
    """Return (rule, place) of what keeps `new` from reading data of `old`."""
    old, new = (parse(type_, each if isinstance(each, str) else json.dumps(each)) for each in (old, new))
    return [(each.rule, each.place) for each in differences(new, old, policy=policy)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int", "long", []),
        ("long", "int", [("TYPE_MISMATCH", "/")]),
        ("float", "double", []),
        ("string", "bytes", []),
        ("int", ["null", "long"], []),
        (["null", "int"], "int", [("TYPE_MISMATCH", "/")]),
        (["int", "string"], ["string"], [("MISSING_UNION_BRANCH", "/0")]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, [("TYPE_MISMATCH", "/items")]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, []),
        (enum("A", "B"), enum("A"), [("MISSING_ENUM_SYMBOLS", "/symbols")]),
        (enum("A", "B"), enum("A", default="A"), []),
        (enum("A"), enum("A", "B"), []),
        (enum("A"), {**enum("A"), "name": "F"}, [("NAME_MISMATCH", "/name")]),
        (enum("A"), {**enum("A"), "namespace": "elsewhere"}, []),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            [("FIXED_SIZE_MISMATCH", "/size")],
        ),
        (avro(("a", "int")), avro(), []),
        (avro(), avro(("a", "int")), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")]),
        (avro(), avro(("a", "int", 0)), []),
        (avro(("a", "int")), avro(("a", "string")), [("TYPE_MISMATCH", "/fields/0/type")]),
        (avro(("a", "int")), {**avro(), "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, []),
        (avro(("a", "int")), {**avro(("a", "int")), "name": "Other", "aliases": ["R"]}, []),
        (avro(("a", "int")), {**avro(("a", "int")), "name": "Other", "aliases": ["x.R"]}, [("NAME_MISMATCH", "/name")]),
        (avro(("next", ["null", "R"])), avro(("next", ["null", "R"]), ("n", "int", 1)), []),
    ],
)
def test_avro(old: Any, new: Any, expected: list[tuple[str, str]]) -> None:
    assert rules_against("AVRO", json.dumps(old), json.dumps(new)) == expected


OPEN = {"type": "object"}
CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"type": "string"}, {"type": "number"}, [("TYPE_CHANGED", "#/")]),
        ({"type": "integer"}, {"type": "number"}, []),
        ({"type": "number"}, {"type": "integer"}, [("TYPE_NARROWED", "#/")]),
        ({"type": "string"}, {"type": ["string", "null"]}, []),
        ({"type": ["string", "null"]}, {"type": "string"}, [("TYPE_CHANGED", "#/")]),
        ({"type": "string"}, {}, []),
        ({}, {"type": "string"}, [("TYPE_CHANGED", "#/")]),
        ({"type": "string"}, {"type": "string", "maxLength": 3}, [("MAX_LENGTH_ADDED", "#/maxLength")]),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 4}, []),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, [("PATTERN_CHANGED", "#/pattern")]),
        ({"minimum": 1}, {"minimum": 2}, [("MINIMUM_INCREASED", "#/minimum")]),
        ({"multipleOf": 4}, {"multipleOf": 2}, []),
        ({"multipleOf": 2}, {"multipleOf": 4}, [("MULTIPLE_OF_EXPANDED", "#/multipleOf")]),
        ({"multipleOf": 2}, '{"multipleOf": 1e999}', [("MULTIPLE_OF_CHANGED", "#/multipleOf")]),
        ({"multipleOf": 1e-10}, {"multipleOf": 1e20}, [("MULTIPLE_OF_CHANGED", "#/multipleOf")]),
        ({"enum": [1, 2]}, {"enum": [1]}, [("ENUM_ARRAY_NARROWED", "#/enum")]),
        ({"enum": [1]}, {"enum": [1, 2]}, []),
        ({"const": 1}, {"const": 2}, [("ENUM_ARRAY_CHANGED", "#/const")]),
        (CLOSED, {**CLOSED, "properties": {"a": {"type": "string"}}}, []),
        (
            OPEN,
            {**OPEN, "properties": {"a": {"type": "string"}}},
            [("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "#/properties/a")],
        ),
        (OPEN, {**OPEN, "properties": {"a": {}}}, []),
        (
            {**CLOSED, "properties": {"a": {}}},
            CLOSED,
            [("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", "#/properties/a")],
        ),
        ({**OPEN, "properties": {"a": {}}}, OPEN, []),
        (
            CLOSED,
            {**CLOSED, "properties": {"a": {}}, "required": ["a"]},
            [("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", "#/properties/a")],
        ),
        (
            {**OPEN, "properties": {"a": {}}},
            {**OPEN, "properties": {"a": {}}, "required": ["a"]},
            [("REQUIRED_ATTRIBUTE_ADDED", "#/required/a")],
        ),
        (OPEN, CLOSED, [("ADDITIONAL_PROPERTIES_REMOVED", "#/additionalProperties")]),
        (CLOSED, OPEN, []),
        (
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "number"}},
            [("TYPE_CHANGED", "#/items")],
        ),
        ({"type": "array"}, {"type": "array", "maxItems": 1}, [("MAX_ITEMS_ADDED", "#/maxItems")]),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}, [("UNIQUE_ITEMS_ADDED", "#/uniqueItems")]),
        ({"oneOf": [{"type": "string"}]}, {"oneOf": [{"type": "string"}, {"type": "null"}]}, []),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"type": "string"}]}, [("SUM_TYPE_NARROWED", "#/")]),
        ({"not": {"type": "string"}}, {"not": {"type": "number"}}, [("NOT_TYPE_EXTENDED", "#/not")]),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"maximum": 2}}}, {"maximum": 1}, [("MAXIMUM_DECREASED", "#/maximum")]),
        ({"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}, []),
        (
            {"properties": {"a": {"$ref": "#"}, "n": {"type": "integer"}}},
            {"properties": {"a": {"$ref": "#"}, "n": {"type": "string"}}},
            [("TYPE_CHANGED", "#/properties/a/properties/n"), ("TYPE_CHANGED", "#/properties/n")],
        ),
    ],
)
def test_json_schema(old: Any, new: Any, expected: list[tuple[str, str]]) -> None:
    assert rules_against("JSON", old, new) == expected


def test_a_lenient_policy_takes_an_open_content_model_as_unused() -> None:
    new = {**OPEN, "properties": {"a": {"type": "string"}}}
    assert rules_against("JSON", OPEN, new, policy="LENIENT") == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("message M { int32 a = 1; }", "message M { int64 b = 1; }", []),
        ("message M { int32 a = 1; }", "message M { string a = 1; }", [("FIELD_SCALAR_KIND_CHANGED", "#/M/1")]),
        ("message M { int32 a = 1; }", "message M { sint32 a = 1; }", [("FIELD_SCALAR_KIND_CHANGED", "#/M/1")]),
        ("message M { string a = 1; }", "message M { bytes a = 1; }", []),
        ("message M { int32 a = 1; }", "message M { repeated int32 a = 1; }", [("FIELD_NUMERIC_LABEL_CHANGED", "#/M/1")]),
        ("message M { string a = 1; }", "message M { repeated string a = 1; }", []),
        ("message M { int32 a = 1; }", "message M { M a = 1; }", [("FIELD_KIND_CHANGED", "#/M/1")]),
        ("message M { int32 a = 1; int32 b = 2; }", "message M { int32 a = 1; }", []),
        ("message M {} message N {}", "message M {}", [("MESSAGE_REMOVED", "#/N")]),
        (
            "message M { N a = 1; } message N {} message O {}",
            "message M { O a = 1; } message N {} message O {}",
            [("FIELD_NAMED_TYPE_CHANGED", "#/M/1")],
        ),
        ("package a; message M {}", "package b; message M {}", [("PACKAGE_CHANGED", "#/")]),
        (
            "message M { oneof o { int32 a = 1; int32 b = 2; } }",
            "message M { oneof o { int32 a = 1; } }",
            [("ONEOF_FIELD_REMOVED", "#/M/o/2")],
        ),
        (
            "message M { int32 a = 1; int32 b = 2; }",
            "message M { oneof o { int32 a = 1; int32 b = 2; } }",
            [("MULTIPLE_FIELDS_MOVED_TO_ONEOF", "#/M/o")],
        ),
        ("message M { int32 a = 1; }", "message M { oneof o { int32 a = 1; int32 b = 2; } }", []),
        (
            "message M { map<string, int32> m = 1; }",
            "message M { map<string, string> m = 1; }",
            [("FIELD_SCALAR_KIND_CHANGED", "#/M/1")],
        ),
        ("enum E { A = 0; B = 1; } message M { E e = 1; }", "enum E { A = 0; } message M { int32 e = 1; }", []),
    ],
)
def test_protobuf(old: str, new: str, expected: list[tuple[str, str]]) -> None:
    assert rules_against("PROTOBUF", f'syntax = "proto3"; {old}', f'syntax = "proto3"; {new}') == expected


def test_required_fields_of_proto2() -> None:
    without, with_ = 'syntax = "proto2"; message M {}', 'syntax = "proto2"; message M { required int32 a = 1; }'
    assert rules_against("PROTOBUF", without, with_) == [("REQUIRED_FIELD_ADDED", "#/M/1")]
    assert rules_against("PROTOBUF", with_, without) == [("REQUIRED_FIELD_REMOVED", "#/M/1")]


def version(*fields: Any) -> ParsedSchema:
    return parse("AVRO", json.dumps(avro(*fields)))


NONE_, OPTIONAL, REQUIRED = version(), version(("a", "int", 0)), version(("a", "int"))


@pytest.mark.parametrize(
    ("history", "new", "allowed"),
    [
        ([], REQUIRED, set(LEVELS)),
        ([OPTIONAL], REQUIRED, set(LEVELS)),
        ([NONE_], REQUIRED, {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}),
        ([REQUIRED], NONE_, {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}),
        ([NONE_, OPTIONAL], REQUIRED, {"NONE", "BACKWARD", "FORWARD", "FULL", "FORWARD_TRANSITIVE"}),
        ([REQUIRED, OPTIONAL], NONE_, {"NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE"}),
    ],
)
def test_levels_say_who_is_compared_with_whom(history: list[ParsedSchema], new: ParsedSchema, allowed: set[str]) -> None:
    earlier = [Earlier(n, lambda each=each: each) for n, each in enumerate(history, 1)]  # type: ignore[misc]
    assert {level for level in LEVELS if not check(level, new, earlier)} == allowed


def test_another_language_never_follows() -> None:
    old = parse("JSON", '{"type":"string"}')
    assert check("BACKWARD", REQUIRED, [Earlier(1, lambda: old)]) == ["Incompatible because of different schema type"]


def test_a_guid_is_that_of_every_other_registry() -> None:
    """MD5 of the text, then of references, metadata and rules in the other registry's order (its own program says these)."""
    assert guid_of(digest_of('"string"')) == "095d71cf-1255-6b9d-5e33-0ad575b3df5d"
    metadata = Metadata({"b": "2", "a": "1"}, ("s",), {"t": ("y", "x")})
    rules = RuleSet(domain_rules=(Rule(name="n", mode="WRITE", type="CEL", expr="true", disabled=True),))
    whole = digest_of('"int"', (Reference("n", "s", 1),), metadata, rules)
    expected = b'"int"' + b"ns\x00\x00\x00\x01" + b"\x01" + b"txy" + b"a1b2" + b"s" + b"\x01" + b"nWRITECELtrue\x01"
    assert whole == hashlib.md5(expected, usedforsecurity=False).digest()


@pytest.mark.parametrize(
    ("type_", "text", "canonical", "normal"),
    [
        ("AVRO", ' {"type" : "string"} ', '"string"', '"string"'),
        (
            "AVRO",
            '{"fields":[],"name":"a.R","type":"record","z":1,"doc":"d","aliases":["a.Q"]}',
            '{"type":"record","name":"R","namespace":"a","doc":"d","fields":[],"z":1,"aliases":["Q"]}',
            '{"name":"a.R","type":"record","fields":[],"doc":"d","aliases":["a.Q"],"z":1}',
        ),
        ("JSON", '{ "type": "string", "$id": "x" }', '{"type":"string","$id":"x"}', '{"$id":"x","type":"string"}'),
        (
            "PROTOBUF",
            'syntax="proto3";package p; // a comment\nmessage M{.p.M m=2;int32 a=1;}',
            'syntax = "proto3";\npackage p;\n\nmessage M {\n  M m = 2;\n  int32 a = 1;\n}\n',
            'syntax = "proto3";\npackage p;\n\nmessage M {\n  int32 a = 1;\n  M m = 2;\n}\n',
        ),
    ],
)
def test_canonical_and_normalised_text(type_: str, text: str, canonical: str, normal: str) -> None:
    assert parse(type_, text).text == canonical
    assert parse(type_, text, normalize=True).text == normal


_DRAFTS = {
    "http://json-schema.org/draft-04/schema#": ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
    "http://json-schema.org/draft-06/schema#": ({"exclusiveMinimum": 1}, {"exclusiveMinimum": True}),
    "http://json-schema.org/draft-07/schema#": ({"if": {"minimum": 3}, "then": {"maximum": 9}}, {"if": 3}),
    "https://json-schema.org/draft/2019-09/schema": ({"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"}, {"$defs": []}),
    "https://json-schema.org/draft/2020-12/schema": ({"type": "array", "prefixItems": [{"type": "string"}]}, {"prefixItems": {}}),
}


@pytest.mark.parametrize("draft", _DRAFTS)
def test_each_draft_of_json_schema_has_its_own_words(draft: str) -> None:
    good, bad = ({"$schema": draft, **words} for words in _DRAFTS[draft])
    assert parse("JSON", json.dumps(good), is_new=True).text
    with pytest.raises(InvalidSchema):
        parse("JSON", json.dumps(bad), is_new=True)
