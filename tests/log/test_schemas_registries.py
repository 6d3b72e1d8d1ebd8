"""A registry as serdes see it over HTTP: what is asked for once, what is kept, and what becomes of schemas that go away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from logflume.log import DecodeError
from logflume.log.registry import RegistryServer
from logflume.log.schemas import (
    BIGINT,
    STRING,
    Column,
    FormatSpec,
    MemoryRegistry,
    SchemaNotFound,
    array,
    registries,
    registry_at,
    serde,
    struct,
)

from ._registry import Rest


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    with RegistryServer(str(tmp_path_factory.mktemp("data")), port=0) as server:
        yield Rest(server.address)


def lookups(rest: Rest) -> int:
    """Return how many GETs the registry has answered; asking is one more."""
    lines = rest.client.get("/metrics").text.splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith('logflume_registry_requests_total{method="GET"'))


def fixed(name: str) -> str:
    return json.dumps({"type": "fixed", "name": name, "size": 4})


def test_of_several_that_want_a_schema_one_asks_and_it_is_kept(rest: Rest) -> None:
    schema_id = rest.register("asked", fixed("Asked"))
    registry = registries.HttpRegistry(rest.address)
    before = lookups(rest)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: registry.by_id(schema_id), range(40)))
    assert {each.id for each in found} == {schema_id}
    assert lookups(rest) - before == 2, "one for the schema, one for the count before"


def test_what_is_kept_is_bounded(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "_KEPT_SCHEMAS", 2)
    ids = [rest.register(f"kept{n}", fixed(f"Kept{n}")) for n in range(3)]
    registry = registries.HttpRegistry(rest.address)
    for schema_id in ids:
        registry.by_id(schema_id)
    before = lookups(rest)
    registry.by_id(ids[1])
    registry.by_id(ids[2])
    assert lookups(rest) - before == 1
    registry.by_id(ids[0])
    assert lookups(rest) - before == 3


def test_a_deleted_schema_reads_what_was_written_until_it_is_deleted_for_good(rest: Rest) -> None:
    def spec() -> FormatSpec:
        registries._http_registry.cache_clear()
        return FormatSpec("AVRO", registry=rest.address, subject="gone-value")

    columns = (Column("A", BIGINT),)
    data = serde(spec(), columns).encode((7,))
    rest.ok("DELETE", "/subjects/gone-value")
    assert serde(spec(), columns).decode(data) == (7,)
    rest.ok("DELETE", "/subjects/gone-value?permanent=true")
    with pytest.raises(SchemaNotFound):
        serde(spec(), columns).decode(data)


PROTO = 'syntax = "proto3"; message A { int64 a = 1; message Inner { int64 a = 1; } } message B { int64 a = 1; }'


@pytest.mark.parametrize(
    ("indexes", "said"),
    [
        (b"\x02\x04", r"\[2\].* 2 messages"),
        (b"\x04\x00\x02", r"\[0, 1\].* 1 messages"),
        (b"\x02\x01", r"\[-1\]"),
        (b"\xfe\x7f", "1 to 64"),
    ],
)
def test_a_message_that_the_schema_does_not_have_is_a_broken_record(indexes: bytes, said: str) -> None:
    registry = MemoryRegistry()
    schema_id = registry.register("t-value", "PROTOBUF", PROTO)
    reader = serde(FormatSpec("PROTOBUF", registry=registry.location, subject="t-value"), (Column("A", BIGINT),))
    head = b"\0" + schema_id.to_bytes(4, "big")
    for there in (b"\x00", b"\x02\x02", b"\x04\x00\x00"):
        assert reader.decode(head + there + b"\x08\x05") == (5,)
    with pytest.raises(DecodeError, match=said):
        reader.decode(head + indexes + b"\x08\x05")


@pytest.mark.parametrize(
    ("type", "column", "said"),
    [
        ('"string"', BIGINT, "the column is BIGINT, but it was written as Avro string"),
        ('{"type":"array","items":"long"}', array(STRING), None),
        ('["int","string"]', STRING, "a union of int, string cannot be a column of type STRING"),
        ('["int","long"]', struct(Column("int", BIGINT), Column("long", BIGINT)), "a union of int, long cannot be a column"),
    ],
)
def test_a_writers_schema_that_the_columns_cannot_hold_says_which_one(type: str, column: object, said: str | None) -> None:
    registry = MemoryRegistry()
    text = f'{{"type":"record","name":"R","fields":[{{"name":"A","type":{type}}}]}}'
    schema_id = registry.register("t-value", "AVRO", text)
    reader = serde(FormatSpec("AVRO", registry=registry.location, subject="t-value"), (Column("A", column),))  # type: ignore[arg-type]
    data = b"\0" + schema_id.to_bytes(4, "big") + b"\x02\x04\x00"
    if said is None:
        assert reader.decode(data) == (["2"],)
    else:
        with pytest.raises(DecodeError, match=said):
            reader.decode(data)
    assert registry_at(registry.location) is registry
