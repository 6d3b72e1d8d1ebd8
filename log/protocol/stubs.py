"""The types of the message classes for a type checker, made from the tables: `python -m logflume.log.protocol.stubs` writes
`messages.pyi`. A test checks that it is current."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from .messages import message_table
from .tables import NO_VERSIONS, PRIMITIVES, Field, Message, Struct, api_names, data_message_names

TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "bytes",
    "records": "Any",
}
"""Types that are not int. Records may be anything that the sender of a frame knows."""

HEAD = '''"""Written by `python -m logflume.log.protocol.stubs` from the tables; not to be changed by hand."""

from typing import Any

from .classes import MessageBase
from .tables import Message

def message_class(name: str) -> type[Any]: ...
def message_table(name: str) -> Message: ...
'''


def stub_source() -> str:
    """Return the text of `messages.pyi`."""
    names = [f"{api}{kind}" for api in api_names() for kind in ("Request", "Response")]
    classes = ("\n".join(_message(message_table(name))) + "\n" for name in [*names, *data_message_names()])
    return "\n".join([HEAD, *classes])


def _message(message: Message) -> Iterator[str]:
    yield f"class {message.name}(MessageBase):"
    for struct in message.structs.values():
        yield f"    class {struct.name}(MessageBase):"
        yield from _struct(message, struct, "        ")
    yield from _struct(message, message.top, "    ")


def _struct(message: Message, struct: Struct, indent: str) -> Iterator[str]:
    if not struct.fields:
        yield f"{indent}pass"
    for field in struct.fields:
        yield f"{indent}{field.name}: {_type(message, field)} = ..."


def _type(message: Message, field: Field) -> str:
    is_struct = field.type_name not in PRIMITIVES
    name = f"{message.name}.{field.type_name}" if is_struct else TYPES.get(field.type_name, "int")
    if field.is_array:
        name = f"list[{name}]"
    is_absent = is_struct and field.tag is not None and not field.is_array
    may_be_null = field.nullable != NO_VERSIONS or is_absent
    return f"{name} | None" if may_be_null and name != "Any" else name


if __name__ == "__main__":
    Path(str(files(__package__).joinpath("messages.pyi"))).write_text(stub_source())
