"""Hypothesis strategies that make messages from the tables."""

from typing import Any

from hypothesis import strategies as st

from logflume.log.protocol import messages
from logflume.log.protocol.tables import Field, Message, Struct

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def message(table: Message, version: int, *, is_modest: bool = False) -> st.SearchStrategy[Any]:
    """Make messages that set only what `version` has. `is_modest`: integers that also fit times, durations and error codes."""
    return _Maker(table, version, is_modest).struct(table.top, messages.message_class(table.name))


class _Maker:
    def __init__(self, table: Message, version: int, is_modest: bool) -> None:
        self.table, self.version, self.is_modest = table, version, is_modest
        self.top = messages.message_class(table.name)

    def struct(self, struct: Struct, cls: Any) -> st.SearchStrategy[Any]:
        fields = {field.name: self.field(field) for field in struct.fields if self.version in field.versions}
        return st.builds(cls, **fields)

    def field(self, field: Field) -> st.SearchStrategy[Any]:
        one = self.one(field)
        if field.is_array:
            one = st.lists(one, max_size=2)
        is_absent_struct = (
            field.tag is not None and field.default is not None and not field.is_array and field.type_name in self.table.structs
        )
        if self.version in field.nullable or is_absent_struct or field.type_name == "records":
            one = st.none() | one
        return one

    def one(self, field: Field) -> st.SearchStrategy[Any]:
        kind = field.type_name
        if kind in self.table.structs:
            return self.struct(self.table.structs[kind], getattr(self.top, kind))
        if kind in _INTEGERS:
            low, high = _INTEGERS[kind]
            if self.is_modest:
                low, high = max(low, 0), min(high, 10**9)
                if "error_code" in field.name:
                    high = 120
            return st.integers(low, high)
        if kind == "string":
            return st.text("abz.-é√", max_size=5) | st.sampled_from(["x" * 127, "y" * 300])
        if kind in ("bytes", "records"):
            return st.binary(max_size=6) | st.sampled_from([b"z" * 130, bytes(2000)])
        if kind == "uuid":
            return st.binary(min_size=16, max_size=16)
        return st.booleans() if kind == "bool" else st.floats(allow_nan=False, allow_infinity=False)
