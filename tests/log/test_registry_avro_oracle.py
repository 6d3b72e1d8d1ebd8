"""Our verdicts on pairs of Avro schemas against those of Apache Avro's own checker."""

from __future__ import annotations

import json
import random
from typing import Any

import avro.compatibility
import avro.schema
import pytest

from logflume.log.registry.compatibility import differences
from logflume.log.registry.schemas import InvalidSchema, parse

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")


def schema(random_: random.Random, depth: int, names: list[str]) -> Any:
    """Return a random schema; `names` are those in use."""
    kind = random_.randrange(11 if depth else 8)
    if kind < 8:
        return random_.choice(PRIMITIVES)
    if kind < 10:
        part = "items" if kind == 8 else "values"
        return {"type": "array" if kind == 8 else "map", part: schema(random_, depth - 1, names)}
    names.append(f"R{len(names)}")
    made: dict[str, Any] = {"type": "record", "name": names[-1], "fields": []}
    for name in random_.sample(("a", "b", "c", "d"), random_.randrange(4)):
        field: dict[str, Any] = {"name": name, "type": schema(random_, depth - 1, names)}
        if random_.random() < 0.3:
            field = {"name": name, "type": ["null", random_.choice(("int", "string"))]}
            field |= {"default": None} if random_.random() < 0.6 else {}
        made["fields"].append(field)
    return made


def changed(random_: random.Random, value: Any) -> Any:
    """Return a schema with one field of its record changed or removed."""
    made = json.loads(json.dumps(value))
    if isinstance(made, dict) and made.get("fields"):
        field = random_.choice(made["fields"])
        if random_.random() < 0.3:
            made["fields"].remove(field)
        else:
            field["type"] = schema(random_, 1, [""] * 50)
            field.pop("default", None)
    return made


@pytest.mark.slow
def test_our_verdict_is_that_of_apache_avro() -> None:
    random_ = random.Random(11)
    checker = avro.compatibility.ReaderWriterCompatibilityChecker
    verdicts = {True: 0, False: 0}
    for _ in range(4_000):
        reader = schema(random_, 3, [])
        writer = changed(random_, reader) if random_.random() < 0.7 else schema(random_, 3, [])
        if random_.random() < 0.5:
            reader, writer = writer, reader
        try:
            ours = not differences(parse("AVRO", json.dumps(reader)), parse("AVRO", json.dumps(writer)))
            parsed = [avro.schema.parse(json.dumps(each)) for each in (reader, writer)]
        except (InvalidSchema, avro.schema.AvroException):
            continue
        found = checker().get_compatibility(*parsed).compatibility
        assert ours == (found is avro.compatibility.SchemaCompatibilityType.compatible), (reader, writer)
        verdicts[ours] += 1
    assert min(verdicts.values()) > 500
