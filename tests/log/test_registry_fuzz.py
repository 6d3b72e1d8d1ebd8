"""Hostile schemas and bodies: a typed error or a schema, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from logflume.log.registry import RegistryError
from logflume.log.registry.compatibility import Earlier, check, differences
from logflume.log.registry.requests import config_request, mode_request, schema_request
from logflume.log.registry.schemas import InvalidSchema, ParsedSchema, Resolved, parse

AVRO_WORDS = (
    *(
        "type",
        "name",
        "namespace",
        "fields",
        "symbols",
        "items",
        "values",
        "size",
        "default",
        "aliases",
        "record",
        "enum",
        "fixed",
    ),
    *("array", "map", "int", "long", "string", "bytes", "null", "R", "a.b", "logicalType", "decimal", "", "1x"),
)
JSON_WORDS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "allOf", "anyOf", "oneOf", "not", "$ref", "$id"),
    *("#", "#/properties/type", "additionalProperties", "patternProperties", "(a+)+$", "object", "array", "string", "number"),
    *("minimum", "maxLength", "dependencies", "$defs", "definitions", "$schema", "http://json-schema.org/draft-04/schema#", "if"),
)
PROTO_WORDS = (
    *(
        "syntax",
        "=",
        '"proto3"',
        ";",
        "message",
        "M",
        "{",
        "}",
        "int32",
        "a",
        "1",
        "repeated",
        "map<string,",
        "M>",
        "oneof",
        "enum",
    ),
    *("import", '"google/protobuf/any.proto"', "option", "(x)", "reserved", "extend", "package", "a.b", "/*", "//", "\n", "\x00"),
)


def value(random_: random.Random, words: tuple[str, ...], depth: int) -> Any:
    """Return a JSON value of these words."""
    kind = random_.randrange(8 if depth else 5)
    if kind < 3:
        return random_.choice(words)
    if kind == 3:
        return random_.choice((None, True, False, 0, -1, 2**40, 1.5))
    if kind == 4:
        return []
    inner = [value(random_, words, depth - 1) for _ in range(random_.randrange(4))]
    if kind == 5:
        return inner
    return {random_.choice(words): each for each in inner}


def parsed_or_refused(type_: str, text: str) -> ParsedSchema | None:
    try:
        found = parse(type_, text, is_new=True)
    except InvalidSchema:
        return None
    assert parse(type_, found.text).text == found.text, "the canonical form of a canonical form is itself"
    assert parse(type_, parse(type_, text, normalize=True).text, normalize=True).text == parse(type_, text, normalize=True).text
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("type_", "words", "count"), [("AVRO", AVRO_WORDS, 20_000), ("JSON", JSON_WORDS, 3_000)])
def test_random_json_schemas(type_: str, words: tuple[str, ...], count: int) -> None:
    random_ = random.Random(7)
    good: list[ParsedSchema] = []
    for _ in range(count):
        found = parsed_or_refused(type_, json.dumps(value(random_, words, 4)))
        if found is not None:
            good = [*good[-4:], found]
            earlier = random_.choice(good)
            with contextlib.suppress(InvalidSchema):
                differences(found, earlier)
                differences(earlier, found)
    assert good


@pytest.mark.slow
def test_random_protobuf_schemas() -> None:
    random_ = random.Random(7)
    for n in range(600):
        words = [random_.choice(PROTO_WORDS) for _ in range(random_.randrange(20))]
        head = 'syntax = "proto3"; message A { ' if n % 2 else ""
        parsed_or_refused("PROTOBUF", f"{head}{' '.join(words)}{' }' if n % 2 else ''}")


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("AVRO", '{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000),
        ("AVRO", '{"type":"array","items":' * 200 + '"int"' + "}" * 200),
        ("AVRO", "[" * 100_000),
        ("AVRO", json.dumps([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(20_000)]) * 2),
        ("AVRO", '"' + "x" * 2_000_000 + '"'),
        ("AVRO", '"\\ud800"'),
        ("AVRO", '{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":1e999}]}'),
        ("JSON", '{"not":' * 10_000 + "{}" + "}" * 10_000),
        ("JSON", '{"$ref":"#"}'),
        ("JSON", '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'),
        ("JSON", '{"$ref":"http://127.0.0.1:1/never-fetched.json"}'),
        ("JSON", '{"$ref":"file:///etc/passwd"}'),
        ("JSON", '{"type":"object","properties":7}'),
        ("PROTOBUF", 'syntax="proto3"; ' + "message A { " * 5_000),
        ("PROTOBUF", 'import "/etc/passwd";'),
        ("PROTOBUF", 'import "../../../../etc/passwd";'),
        ("PROTOBUF", "A" * 40_000),
    ],
)
def test_hostile_schemas_are_refused(type_: str, text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse(type_, text, is_new=True)


def test_a_reference_cannot_name_a_place_outside() -> None:
    for name in ("../x.proto", "/etc/x.proto", "a/../../x.proto", "a\\b.proto", ""):
        with pytest.raises(InvalidSchema, match="path of an import"):
            parse("PROTOBUF", 'syntax = "proto3";', resolved=[Resolved(name, 'syntax = "proto3";')])


def test_a_comparison_that_would_not_end_is_given_up() -> None:
    """Every definition refers to all others in a oneOf, so that pairs, and matchings of pairs, multiply."""

    def schema(size: int, limit: int) -> ParsedSchema:
        names = [f"d{n}" for n in range(size)]
        parts = [{"$ref": f"#/definitions/{name}"} for name in names]
        definitions = {
            name: {"type": "object", "properties": {f"p{n}": {"oneOf": parts}, "x": {"maximum": limit}}}
            for n, name in enumerate(names)
        }
        return parse("JSON", json.dumps({"oneOf": parts, "definitions": definitions}))

    old, new = schema(40, 1), schema(40, 2)
    with pytest.raises(InvalidSchema, match="steps"):
        check("FULL", new, [Earlier(1, lambda: old)])


def refused_with(read: Callable[[bytes], object], body: bytes) -> RegistryError | None:
    try:
        read(body)
    except RegistryError as error:
        return error
    return None


def test_random_bodies_are_refused_or_read() -> None:
    random_ = random.Random(7)
    words = (
        "schema",
        "schemaType",
        "references",
        "metadata",
        "ruleSet",
        "version",
        "id",
        "properties",
        "domainRules",
        "name",
        "mode",
    )
    for _ in range(20_000):
        body = json.dumps(value(random_, (*words, "compatibility", "AVRO", "FULL"), 3)).encode()
        if random_.random() < 0.2:
            body = bytes(random_.choice((byte, random_.randrange(256))) for byte in body)
        for read in (schema_request, config_request, mode_request):
            refusal = refused_with(read, body)
            assert refusal is None or refusal.fault.value.status in (400, 422)
