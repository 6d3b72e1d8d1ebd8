"""A `oneof` of Protobuf: one struct, in which the field that was set is not null; what is set is written."""

from __future__ import annotations

from typing import Any

import pytest

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    STRING,
    Column,
    DataType,
    FormatSpec,
    MemoryRegistry,
    Serde,
    schema_type,
    serde,
    struct,
)

ORDER = """
syntax = "proto3";
package shop;
message Order {
  int64 id = 1;
  oneof paid { string card = 2; bool cash = 3; Gift gift = 4; }
  optional string note = 5;
  oneof to { string name = 6; int64 number = 7; }
  message Gift { oneof from { string name = 1; int64 number = 2; } }
}
"""
WHO = struct(Column("name", STRING), Column("number", BIGINT))
PAID = struct(Column("card", STRING), Column("cash", BOOLEAN), Column("gift", struct(Column("from_0", WHO))))
COLUMNS = (Column("paid_0", PAID), Column("to_1", WHO), Column("id", BIGINT), Column("note", STRING))
NOT_PAID = dict.fromkeys(("card", "cash", "gift"))


def registered() -> tuple[MemoryRegistry, FormatSpec]:
    registry = MemoryRegistry()
    registry.register("t-value", "PROTOBUF", ORDER)
    return registry, FormatSpec("PROTOBUF", registry=registry.location, subject="t-value", uses_latest=True)


def message_of(text: str = ORDER, name: str = "Order") -> Any:
    from google.protobuf import message_factory

    from logflume.log.schemas.proto_compiler import compile_proto
    from logflume.log.schemas.proto_schema import messages_of

    file, _ = messages_of(compile_proto(text))
    return message_factory.GetMessageClass(file.message_types_by_name[name])


def test_a_oneof_is_a_struct_named_after_it_and_its_place() -> None:
    _registry, spec = registered()
    assert schema_type(spec) == struct(*COLUMNS)


@pytest.mark.parametrize(
    "paid",
    [{"card": "visa"}, {"cash": False}, {"gift": {"from_0": {"name": None, "number": 7}}}, {"gift": {"from_0": None}}, None],
    ids=["text", "a default", "a oneof in a message", "an empty message", "none"],
)
def test_the_field_of_a_oneof_that_is_set_is_written_and_read(paid: dict[str, Any] | None) -> None:
    _registry, spec = registered()
    both = serde(spec, COLUMNS)
    row = (None if paid is None else NOT_PAID | paid, {"name": None, "number": 0}, 1, None)
    data = both.encode(row)
    assert data is not None
    assert both.decode(data) == row
    message = message_of().FromString(data[6:])
    assert (message.WhichOneof("paid"), message.WhichOneof("to")) == (None if paid is None else next(iter(paid)), "number")


def test_names_are_taken_in_any_case_and_fields_that_are_not_asked_for_are_left_out() -> None:
    _registry, spec = registered()
    data = serde(spec, COLUMNS).encode((NOT_PAID | {"cash": True}, None, 1, "n"))
    part = (Column("PAID_0", struct(Column("CARD", STRING), Column("CASH", BOOLEAN), Column("CHEQUE", STRING))),)
    assert serde(spec, part).decode(data) == ({"CARD": None, "CASH": True, "CHEQUE": None},)
    other = (Column("PAID_0", struct(Column("CARD", STRING))),)
    assert serde(spec, other).decode(data) == ({"CARD": None},)


def test_a_oneof_with_two_fields_set_is_refused() -> None:
    _registry, spec = registered()
    with pytest.raises(InvalidInput, match="a oneof has one value, but card and cash are set"):
        serde(spec, COLUMNS).encode((NOT_PAID | {"card": "visa", "cash": True}, None, 1, None))


@pytest.mark.parametrize("type", [STRING, BIGINT])
def test_a_oneof_is_no_scalar(type: DataType) -> None:
    _registry, spec = registered()
    both: Serde = serde(spec, (Column("paid_0", type),))
    with pytest.raises(DecodeError, match="paid is a oneof"):
        both.decode(serde(spec, COLUMNS).encode((None, None, 1, None)))
