"""What the registry says of pairs of schemas against what readers really make of what writers wrote: Protobuf's own library for
its messages, `jsonschema` for JSON. For Avro Apache's checker is asked (`test_registry_avro_oracle.py`).

Where the verdict is yes, nothing that was written may be lost or refused. Where it is no for a rule of the wire, there is a
value that is. The other rules of Confluent's are stricter than the wire on purpose: they are about names and generated code.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from logflume.log.registry.compatibility import differences
from logflume.log.registry.schemas import parse

# ------------------------------------------------------------------------------------------------ Protobuf

NUMBERS = ("int32", "int64", "uint32", "uint64", "bool", "Color")
SCALARS = (*NUMBERS, "sint32", "sint64", "string", "bytes", "fixed32", "sfixed32", "fixed64", "sfixed64", "float", "double")
WIRE_RULES = {
    "FIELD_KIND_CHANGED",
    "FIELD_SCALAR_KIND_CHANGED",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
    "FIELD_MOVED_TO_EXISTING_ONEOF",
}
Field = tuple[str, str, str]
"""(label, type, oneof or nothing)"""


def field(random_: random.Random) -> Field:
    kind = random_.choice((*SCALARS, "Inner", "map"))
    if kind == "map":
        return "", f"map<string, {random_.choice(SCALARS)}>", ""
    if random_.random() < 0.25:
        return "repeated ", kind, ""
    return "", kind, random_.choice(("", "", "one", "other"))


def changed_fields(random_: random.Random, fields: dict[int, Field]) -> dict[int, Field]:
    made = dict(fields)
    for _ in range(random_.randrange(1, 3)):
        number = random_.randrange(1, 7)
        label, kind, oneof = made.get(number, ("", "int32", ""))
        how = random_.randrange(5)
        if how == 0:
            made.pop(number, None)
        elif how == 1 and not kind.startswith("map"):
            made[number] = ("", kind, random_.choice(("", "one", "other")))
        elif how == 2 and not kind.startswith("map"):
            made[number] = ("" if label else "repeated ", kind, "")
        elif how == 3 and kind in NUMBERS:
            made[number] = (label, random_.choice(NUMBERS), oneof)
        else:
            made[number] = field(random_)
    return made


def proto_text(fields: dict[int, Field], inner: dict[int, Field]) -> str:
    def body(fields: dict[int, Field]) -> str:
        lines = [f"{label}{kind} f{n} = {n};" for n, (label, kind, oneof) in fields.items() if not oneof]
        for name in ("one", "other"):
            members = "".join(f"{kind} f{n} = {n};" for n, (_, kind, oneof) in fields.items() if oneof == name)
            lines += [f"oneof {name} {{{members}}}"] if members else []
        return "\n".join(lines)

    plain = {n: each for n, each in inner.items() if "Inner" not in each[1]}
    enum = "enum Color { C0 = 0; C1 = 1; C2 = 2; }"
    return (
        f'syntax = "proto3";\nmessage M {{\n{body(fields)}\nInner always = 9;\n}}\nmessage Inner {{\n{body(plain)}\n}}\n{enum}\n'
    )


def message_class(text: str) -> Any:
    tree = parse("PROTOBUF", text).tree
    pool = DescriptorPool()
    for each in (*tree.imports, tree.file):
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName("M"))


def scalar(random_: random.Random, of: Any) -> Any:
    """Return a value that is not the default and that every type of its family can hold."""
    if of.cpp_type in (of.CPPTYPE_FLOAT, of.CPPTYPE_DOUBLE):
        return random_.choice((0.5, 3.0))
    if of.cpp_type == of.CPPTYPE_STRING:
        return "text" if of.type == of.TYPE_STRING else b"text"
    return True if of.cpp_type == of.CPPTYPE_BOOL else random_.choice((1, 2))


def fill(random_: random.Random, message: Message) -> None:
    """Set all fields, and one of each oneof."""
    chosen = {each.name: random_.choice(each.fields).number for each in message.DESCRIPTOR.oneofs}
    for of in message.DESCRIPTOR.fields:
        if of.containing_oneof is not None and chosen[of.containing_oneof.name] != of.number:
            continue
        target = getattr(message, of.name) if of.is_repeated else None
        if of.message_type is not None and of.message_type.GetOptions().map_entry:
            for key in ("a", "b"):
                target[key] = scalar(random_, of.message_type.fields_by_name["value"])
        elif target is not None and of.message_type is None:
            target.extend([scalar(random_, of) for _ in range(2)])
        elif of.message_type is not None:
            fill(random_, getattr(message, of.name) if target is None else target.add())
            if target is None:
                getattr(message, of.name).SetInParent()
        else:
            setattr(message, of.name, scalar(random_, of))


def is_kept(written: Message, read: Message) -> bool:
    """Return whether all fields that both have mean the same."""
    found = {of.number: (of, value) for of, value in read.ListFields()}
    known = read.DESCRIPTOR.fields_by_number
    return all(
        of.number not in known or (of.number in found and _is_same(of, value, *found[of.number]))
        for of, value in written.ListFields()
    )


def _is_same(was: Any, value: Any, is_: Any, found: Any) -> bool:
    if was.is_repeated and was.message_type is not None and was.message_type.GetOptions().map_entry:
        if is_.message_type is None or not is_.message_type.GetOptions().map_entry:
            return False
        return value.keys() == found.keys() and all(_is_same_item(value[key], found[key]) for key in value)
    values = list(value) if was.is_repeated else [value]
    items = list(found) if is_.is_repeated else [found]
    if was.is_repeated and not is_.is_repeated:
        values = values[-1:]
    return len(values) == len(items) and all(_is_same_item(*pair) for pair in zip(values, items, strict=True))


def _is_same_item(value: Any, found: Any) -> bool:
    if isinstance(value, Message) or isinstance(found, Message):
        return isinstance(value, Message) and isinstance(found, Message) and is_kept(value, found)
    if isinstance(value, bool) or isinstance(found, bool):
        return isinstance(value, int) and isinstance(found, int) and bool(value) == bool(found)
    if isinstance(value, str | bytes) and isinstance(found, str | bytes):
        return str(value).strip("b'") == str(found).strip("b'")
    return bool(value == found)


def is_read(random_: random.Random, reader: Any, writer: Any) -> bool:
    """Return whether nothing is lost of some messages."""
    for _ in range(25):
        written = writer()
        fill(random_, written)
        try:
            if not is_kept(written, reader.FromString(written.SerializeToString())):
                return False
        except DecodeError:
            return False
    return True


@pytest.mark.slow
def test_what_we_say_of_protobuf_schemas_is_what_its_library_does() -> None:
    random_ = random.Random(5)
    verdicts: Counter[str] = Counter()
    for _ in range(350):
        fields, inner = ({n: field(random_) for n in random_.sample(range(1, 7), 4)} for _ in range(2))
        later = changed_fields(random_, fields), changed_fields(random_, inner) if random_.random() < 0.3 else inner
        old, new = proto_text(fields, inner), proto_text(*later)
        rules = {each.rule for each in differences(parse("PROTOBUF", new), parse("PROTOBUF", old))}
        is_same = is_read(random_, message_class(new), message_class(old))
        if not rules:
            assert is_same, (old, new)
        elif rules <= WIRE_RULES:
            assert not is_same, (old, new, rules)
        verdicts["yes" if not rules else "no" if rules <= WIRE_RULES else "no, for names or labels"] += 1
    assert verdicts["yes"] > 60
    assert verdicts["no"] > 60


# ------------------------------------------------------------------------------------------------ JSON Schema

NAMES = ("a", "b", "c")
VALUES: tuple[Any, ...] = (None, True, 0, 1, 4, 9, 2.5, "", "x", "abc", [], [1], ["x"], [1, 1, 1], {}, {"a": 1}, {"a": "x"})


def json_schema(random_: random.Random, depth: int) -> dict[str, Any]:
    kind = random_.choice(("object", "object", "array", "string", "integer", "number", "enum", "any"))
    if kind == "any":
        return {}
    if kind == "enum":
        return {"enum": random_.sample([1, 4, "x", "abc", None], random_.randrange(1, 4))}
    made: dict[str, Any] = {"type": kind}
    if kind == "object" and depth:
        made["properties"] = {name: json_schema(random_, depth - 1) for name in random_.sample(NAMES, random_.randrange(3))}
        made["required"] = random_.sample(list(made["properties"]), random_.randrange(len(made["properties"]) + 1))
        if random_.random() < 0.6:
            made["additionalProperties"] = random_.choice((False, False, json_schema(random_, 0)))
    elif kind == "array" and depth:
        made["items"] = json_schema(random_, depth - 1)
    word = {"string": "Length", "integer": "imum", "number": "imum", "array": "Items"}.get(kind)
    for end in ("min", "max") if word else ():
        if random_.random() < 0.4:
            made[f"{end}{word}"] = random_.randrange(4)
    return made


def changed_json(random_: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with a word added, taken away or changed somewhere."""
    made: dict[str, Any] = json.loads(json.dumps(schema))
    place = made
    while random_.random() < 0.5 and (
        inner := [*place.get("properties", {}).values(), *([place["items"]] if "items" in place else [])]
    ):
        place = random_.choice(inner)
    other = json_schema(random_, 1)
    how = random_.randrange(6)
    if how == 0 or not place:
        place.update(other)
    elif how == 1:
        place.pop(random_.choice(list(place)))
    elif how == 2 and "properties" in place:
        place["properties"][random_.choice(NAMES)] = other
    elif how == 3 and "properties" in place:
        place["properties"].pop(random_.choice(NAMES), None)
    elif how == 4 and place.get("type") in ("integer", "number"):
        place["type"] = "number" if place["type"] == "integer" else "integer"
    else:
        place.update({name: value for name, value in other.items() if name not in ("type", "enum")})
    return made


def is_plain(schema: Any) -> bool:
    """Return whether every schema in it is empty, of a type with that type's words, or an enum.

    Of others Confluent's rules think otherwise than the specification: words without a type stand for the type that they belong
    to, and what is required counts where it is a property.
    """
    if not isinstance(schema, dict):
        return True
    words = set(schema)
    own = {"object": {"properties", "required", "additionalProperties"}, "array": {"items", "minItems", "maxItems"}}
    lengths, bounds = {"minLength", "maxLength"}, {"minimum", "maximum"}
    own |= {"string": lengths, "integer": bounds, "number": bounds}
    fits = words <= {"type"} | own[schema["type"]] if "type" in words else words <= {"enum"}
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    fits = fits and set(schema.get("required", ())) <= set(schema.get("properties", ()))
    return fits and all(is_plain(each) for each in inner)


def instances(schema: Any, depth: int = 3) -> list[Any]:
    """Return values that lie near what a schema asks for."""
    found = list(VALUES)
    if not isinstance(schema, dict) or not depth:
        return found
    found += schema.get("enum", ())
    found += [schema[word] + by for word in ("minimum", "maximum") if word in schema for by in (-1, 0, 1)]
    for name, each in schema.get("properties", {}).items():
        found += [{name: value} for value in instances(each, depth - 1)]
    if isinstance(schema.get("items"), dict):
        found += [[value] * n for value in instances(schema["items"], depth - 1) for n in (1, 3)]
    return found


def documents(random_: random.Random, *schemas: dict[str, Any]) -> list[Any]:
    """Return values, and objects put together of the parts of several."""
    found = [value for schema in schemas for value in instances(schema)]
    parts = [value for value in found if isinstance(value, dict)]
    for _ in range(150):
        made = {name: random_.choice(VALUES) for name in random_.sample(NAMES, random_.randrange(4))}
        for each in random_.sample(parts, min(3, len(parts))):
            made.update(each)
        found.append(made)
    return found


@pytest.mark.slow
def test_what_we_say_of_json_schemas_is_what_a_validator_says_of_documents() -> None:
    random_ = random.Random(3)
    verdicts: Counter[str] = Counter()
    for _ in range(800):
        writer = json_schema(random_, 2)
        reader = changed_json(random_, writer)
        if not is_plain(reader):
            continue
        if random_.random() < 0.5:
            reader, writer = writer, reader
        rules = {each.rule for each in differences(parse("JSON", json.dumps(reader)), parse("JSON", json.dumps(writer)))}
        takes, took = (jsonschema.Draft7Validator(each) for each in (reader, writer))
        written = [value for value in documents(random_, reader, writer) if took.is_valid(value)]
        refused = [value for value in written if not takes.is_valid(value)]
        assert rules or not refused, (reader, writer, refused[0])
        verdicts["yes" if not rules else "no, and here is why" if refused else "no"] += 1
    assert verdicts["yes"] > 200
    assert verdicts["no, and here is why"] > 4 * verdicts["no"]
