"""Message classes made from the tables: slotted, keyword-only constructors with the protocol's defaults, `repr` and `==`.

`ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name="t")])`: structures are attributes of the
message's class, whatever their depth. Defaults of arrays and of structures that are not tagged are new objects each time;
a tagged structure that is absent is None.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

from .tables import PRIMITIVES, Field, Message, Struct

ZERO_UUID = bytes(16)


@dataclass_transform(kw_only_default=True, eq_default=False)
class MessageBase:
    """What all message classes share."""

    __slots__: tuple[str, ...] = ()
    api_key: int = -1
    """API key of a request or response, -1 for structures and data messages."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_short(getattr(self, name))}" for name in type(self).__slots__)
        return f"{type(self).__qualname__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).__slots__)

    __hash__ = None  # type: ignore[assignment]


def _short(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(bytes(value)) if isinstance(value, memoryview) else repr(value)


def make_class(message: Message) -> type[Any]:
    """Return the class of a message, with the classes of its structures as attributes."""
    made: dict[str, type[Any]] = {}
    top = _make_struct(message.top, message.name, made)
    for struct in message.structs.values():
        setattr(top, struct.name, _make_struct(struct, f"{message.name}.{struct.name}", made))
    top.api_key = message.api_key
    return top


def _make_struct(struct: Struct, qualified_name: str, made: dict[str, type[Any]]) -> type[Any]:
    names = [field.name for field in struct.fields]
    parameters, body = [], []
    scope: dict[str, Any] = {"_made": made, "_MISSING": object(), "_ZERO_UUID": ZERO_UUID}
    for field in struct.fields:
        fresh = _fresh_default(field)
        parameters.append(f"{field.name}={'_MISSING' if fresh else default_source(field)}")
        body.append(f"self.{field.name} = " + (f"{fresh} if {field.name} is _MISSING else {field.name}" if fresh else field.name))
    source = f"def __init__(self, *, {', '.join(parameters)}):\n  " + "\n  ".join(body) if names else "def __init__(self): pass"
    exec(source, scope)  # the source comes from our own tables only
    made[struct.name] = type(
        struct.name,
        (MessageBase,),
        {"__slots__": tuple(names), "__init__": scope["__init__"], "__qualname__": qualified_name, "__module__": __name__},
    )
    return made[struct.name]


def _fresh_default(field: Field) -> str | None:
    """Return the source of a default that must be made anew for each object, or None."""
    if field.default is None or (field.tag is not None and field.type_name not in PRIMITIVES and not field.is_array):
        return None
    if field.is_array:
        return "[]"
    return None if field.type_name in PRIMITIVES else f"_made[{field.type_name!r}]()"


def default_source(field: Field) -> str:
    """Return the default of a field as source text; names it uses: `_ZERO_UUID`."""
    if field.is_array:
        return "None" if field.default is None else "[]"
    if field.type_name not in PRIMITIVES or field.default is None:
        return "None"
    if field.type_name == "uuid":
        return "_ZERO_UUID"
    if field.type_name in ("bytes", "records"):
        return 'b""'
    return repr(field.default)
