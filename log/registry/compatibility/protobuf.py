"""Whether data of one Protobuf schema can be read with another: by field number, kind on the wire, and membership in a oneof.

Names of fields and enum values, order, added and removed fields do no harm on the wire. What changes how bytes are read, or drops
a value that was meant to exclude others, does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from logflume.log.registry.schemas.protobuf import ProtobufSchema

from .difference import Difference

Change = tuple[str, tuple[str, ...]]
_FieldComparison = Callable[[FieldDescriptorProto, FieldDescriptorProto, tuple[str, ...]], list[Change]]
COMPATIBLE = frozenset(
    {
        *("MESSAGE_ADDED", "MESSAGE_MOVED", "ENUM_ADDED", "ENUM_REMOVED"),
        *("ENUM_CONST_ADDED", "ENUM_CONST_CHANGED", "ENUM_CONST_REMOVED"),
        *("FIELD_ADDED", "FIELD_REMOVED", "FIELD_NAME_CHANGED", "FIELD_STRING_OR_BYTES_LABEL_CHANGED"),
        *("ONEOF_ADDED", "ONEOF_REMOVED", "ONEOF_FIELD_ADDED", "ONEOF_FIELD_MOVED_TO_TOP_LEVEL"),
    }
)
_DESCRIPTIONS = {
    "PACKAGE_CHANGED": "The package at '{place}' in the {{}} schema does not match the package in the {{}} schema",
    "MESSAGE_REMOVED": "The {{}} schema is missing a MESSAGE type at path '{place}' in the {{}} schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{place}' in the {{}} schema does not match the {{}} schema",
    "FIELD_SCALAR_KIND_CHANGED": (
        "The kind of a SCALAR field at path '{place}' in the {{}} schema does not match its kind in the {{}} schema"
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "The type of a MESSAGE field at path '{place}' in the {{}} schema does not match its type in the {{}} schema"
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "The label for a NUMERIC field at path '{place}' in the {{}} schema does not match its label in the {{}} schema"
    ),
    "REQUIRED_FIELD_ADDED": "A required field at path '{place}' in the {{}} schema is missing in the {{}} schema",
    "REQUIRED_FIELD_REMOVED": "The {{}} schema is missing a required field at path: '{place}' in the {{}} schema",
    "ONEOF_FIELD_REMOVED": "The {{}} schema is missing a oneof field at path '{place}' in the {{}} schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "Multiple fields in the oneof at path '{place}' in the {{}} schema are outside a oneof in the {{}} schema"
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "A field in the oneof at path '{place}' in the {{}} schema is outside an existing oneof in the {{}} schema"
    ),
}
_F = FieldDescriptorProto
_WIRE_KINDS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM), "number"),
    **dict.fromkeys((_F.TYPE_SINT32, _F.TYPE_SINT64), "signed number"),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((_F.TYPE_FIXED32, _F.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_F.TYPE_FIXED64, _F.TYPE_SFIXED64), "fixed64"),
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
}
"""Scalars that read each other's bytes."""


def differences(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Difference]:
    """Return why `reader` cannot read what was written with `writer`; [] when it can."""
    found = []
    for rule, path in changes(reader, writer):
        if rule not in COMPATIBLE:
            place = "#/" + "/".join(path)
            found.append(Difference(rule, place, _DESCRIPTIONS[rule].format(place=place)))
    return found


def changes(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Change]:
    """Return all differences from `writer` to `reader`, also those that do no harm."""
    return list(dict.fromkeys(_Comparison(_Types(writer), _Types(reader)).files(writer.file, reader.file)))


@dataclass(frozen=True, slots=True)
class _Known:
    """A message type and the package that it is in."""

    message: DescriptorProto
    package: str


class _Types:
    """The messages of a schema and its imports by full name."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.messages: dict[str, _Known] = {}
        for file in (*schema.imports, schema.file):
            scope = f".{file.package}" if file.package else ""
            for name, message in _walk(file.message_type, scope):
                self.messages[name] = _Known(message, scope)


def _walk(messages: Iterable[DescriptorProto], scope: str) -> Iterator[tuple[str, DescriptorProto]]:
    for each in messages:
        yield f"{scope}.{each.name}", each
        yield from _walk(each.nested_type, f"{scope}.{each.name}")


class _Comparison:
    """One comparison; a pair of messages that is under way is not looked at again."""

    def __init__(self, old: _Types, new: _Types) -> None:
        self._old, self._new = old, new
        self._under_way: set[tuple[str, str]] = set()
        self._done: dict[tuple[str, str], list[Change]] = {}

    def files(self, old: FileDescriptorProto, new: FileDescriptorProto) -> list[Change]:
        made: list[Change] = [] if old.package == new.package else [("PACKAGE_CHANGED", ())]
        old_scope, new_scope = (f".{each.package}" if each.package else "" for each in (old, new))
        made += self._types(old.message_type, new.message_type, old_scope, new_scope, ())
        return [*made, *_enums(old.enum_type, new.enum_type, ())]

    def _types(
        self,
        old: Iterable[DescriptorProto],
        new: Iterable[DescriptorProto],
        old_scope: str,
        new_scope: str,
        path: tuple[str, ...],
    ) -> list[Change]:
        olds, news = _by_name(old), _by_name(new)
        made: list[Change] = []
        for name in dict.fromkeys((*olds, *news)):
            place = (*path, name)
            if name not in news:
                made.append(("MESSAGE_REMOVED", place))
            elif name not in olds:
                made.append(("MESSAGE_ADDED", place))
            else:
                made += self._message(olds[name][1], news[name][1], f"{old_scope}.{name}", f"{new_scope}.{name}", place)
                if olds[name][0] != news[name][0]:
                    made.append(("MESSAGE_MOVED", place))
        return made

    def _message(
        self, old: DescriptorProto, new: DescriptorProto, old_name: str, new_name: str, path: tuple[str, ...]
    ) -> list[Change]:
        pair = (old_name, new_name)
        if pair in self._under_way:
            return []
        self._under_way.add(pair)
        made = [
            *_Members(old, new, path, self._field).changes(),
            *self._types(old.nested_type, new.nested_type, old_name, new_name, path),
            *_enums(old.enum_type, new.enum_type, path),
        ]
        self._under_way.discard(pair)
        return made

    def _field(self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: tuple[str, ...]) -> list[Change]:
        made: list[Change] = [] if old.name == new.name else [("FIELD_NAME_CHANGED", path)]
        return [*made, *self._field_types(old, new, path, with_label=True)]

    def _field_types(
        self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: tuple[str, ...], *, with_label: bool
    ) -> list[Change]:
        was, is_ = self._kind(old, self._old), self._kind(new, self._new)
        if was != is_:
            return [("FIELD_KIND_CHANGED", path)]
        if was == "scalar":
            return _scalars(old, new, path, with_label=with_label)
        if was == "map":
            olds, news = self._old.messages[old.type_name].message.field, self._new.messages[new.type_name].message.field
            pairs = zip(olds, news, strict=True)
            return [change for o, n in pairs for change in self._field_types(o, n, path, with_label=False)]
        return self._named(old.type_name, new.type_name, path)

    def _kind(self, field: FieldDescriptorProto, types: _Types) -> str:
        if field.type not in (_F.TYPE_MESSAGE, _F.TYPE_GROUP):
            return "scalar"
        known = types.messages.get(field.type_name)
        return "map" if known is not None and known.message.options.map_entry else "message"

    def _named(self, old: str, new: str, path: tuple[str, ...]) -> list[Change]:
        was, is_ = self._old.messages.get(old), self._new.messages.get(new)
        if was is None or is_ is None:
            return [] if old == new else [("FIELD_NAMED_TYPE_CHANGED", path)]
        old_local, new_local = old[len(was.package) + 1 :], new[len(is_.package) + 1 :]
        if old_local != new_local:
            return [("FIELD_NAMED_TYPE_CHANGED", path)]
        pair = (old, new)
        if pair not in self._done:
            self._done[pair] = []
            self._done[pair] = self._message(was.message, is_.message, old, new, tuple(new_local.split(".")))
        found = self._done[pair]
        is_broken = any(rule not in COMPATIBLE for rule, _ in found)
        return [*found, ("FIELD_NAMED_TYPE_CHANGED", path)] if is_broken else list(found)


class _Members:
    """Compares the fields of two messages by number, wherever they stand."""

    def __init__(self, old: DescriptorProto, new: DescriptorProto, path: tuple[str, ...], compare: _FieldComparison) -> None:
        self._path = path
        self._compare = compare
        self._olds, self._old_oneofs = _fields(old)
        self._news, self._new_oneofs = _fields(new)
        self._old_names = set(self._old_oneofs.values())
        self._new_names = set(self._new_oneofs.values())

    def changes(self) -> list[Change]:
        made = list(self._exclusions())
        for name in sorted(self._old_names ^ self._new_names):
            rule = "ONEOF_REMOVED" if name in self._old_names else "ONEOF_ADDED"
            made += [(rule, (*self._path, name))]
        for number in sorted({*self._olds, *self._news}):
            made += self._one(number)
        return made

    def _exclusions(self) -> Iterator[Change]:
        """Give the oneofs in which fields that could be set together now exclude each other."""
        for oneof in dict.fromkeys(self._new_oneofs.values()):
            numbers = [number for number, name in self._new_oneofs.items() if name == oneof and number in self._olds]
            outside = [number for number in numbers if number not in self._old_oneofs]
            origins = {self._old_oneofs.get(number, number) for number in numbers}
            if len(origins) > 1:
                rule = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(outside) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                yield rule, (*self._path, oneof)

    def _one(self, number: int) -> list[Change]:
        old, new = self._olds.get(number), self._news.get(number)
        old_oneof, new_oneof = self._old_oneofs.get(number), self._new_oneofs.get(number)
        place = (*self._path, str(number))
        if new is None:
            assert old is not None
            if old_oneof is not None:
                gone = old_oneof not in self._new_names and not self._survives(old_oneof)
                return [] if gone else [("ONEOF_FIELD_REMOVED", (*self._path, old_oneof, str(number)))]
            return [("REQUIRED_FIELD_REMOVED" if old.label == _F.LABEL_REQUIRED else "FIELD_REMOVED", place)]
        if old is None:
            if new_oneof is not None:
                return [("ONEOF_FIELD_ADDED", (*self._path, new_oneof, str(number)))]
            return [("REQUIRED_FIELD_ADDED" if new.label == _F.LABEL_REQUIRED else "FIELD_ADDED", place)]
        moved: list[Change] = [("ONEOF_FIELD_MOVED_TO_TOP_LEVEL", place)] if old_oneof and not new_oneof else []
        return [*moved, *self._compare(old, new, (*self._path, new_oneof, str(number)) if new_oneof else place)]

    def _survives(self, oneof: str) -> bool:
        return any(number in self._news for number, name in self._old_oneofs.items() if name == oneof)


def _by_name(messages: Iterable[DescriptorProto]) -> dict[str, tuple[int, DescriptorProto]]:
    """Return messages with their place among those that are written (a map's entries are not)."""
    return {each.name: (n, each) for n, each in enumerate(each for each in messages if not each.options.map_entry)}


def _fields(message: DescriptorProto) -> tuple[dict[int, FieldDescriptorProto], dict[int, str]]:
    """Return the fields by number, and the oneof of those that are in one."""
    fields = {each.number: each for each in message.field}
    real = (each for each in message.field if each.HasField("oneof_index") and not each.proto3_optional)
    return fields, {each.number: message.oneof_decl[each.oneof_index].name for each in real}


def _scalars(old: FieldDescriptorProto, new: FieldDescriptorProto, path: tuple[str, ...], *, with_label: bool) -> list[Change]:
    was, is_ = _WIRE_KINDS[old.type], _WIRE_KINDS[new.type]
    if was != is_:
        return [("FIELD_SCALAR_KIND_CHANGED", path)]
    if not with_label or old.label == new.label:
        return []
    if was == "string or bytes":
        return [("FIELD_STRING_OR_BYTES_LABEL_CHANGED", path)]
    return [("FIELD_NUMERIC_LABEL_CHANGED", path)]


def _enums(old: Iterable[EnumDescriptorProto], new: Iterable[EnumDescriptorProto], path: tuple[str, ...]) -> list[Change]:
    olds, news = {each.name: each for each in old}, {each.name: each for each in new}
    made: list[Change] = []
    for name in dict.fromkeys((*olds, *news)):
        if name not in news or name not in olds:
            made.append(("ENUM_ADDED" if name in news else "ENUM_REMOVED", (*path, name)))
            continue
        was = {value.number: value.name for value in olds[name].value}
        is_ = {value.number: value.name for value in news[name].value}
        for number in sorted({*was, *is_}):
            place = (*path, name, str(number))
            if number not in is_ or number not in was:
                made.append(("ENUM_CONST_ADDED" if number in is_ else "ENUM_CONST_REMOVED", place))
            elif was[number] != is_[number]:
                made.append(("ENUM_CONST_CHANGED", place))
    return made
