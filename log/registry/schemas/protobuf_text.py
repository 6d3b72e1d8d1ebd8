"""Protobuf descriptors back to text: the canonical form that is stored and hashed.

Two texts of the same descriptors get the same text. Numbers, names, order of messages and of their nested types (on which message
indexes in records rest), options, also custom ones, are kept; comments and formatting are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import descriptor_pool, message_factory, text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
_LABELS = {FieldDescriptorProto.LABEL_REPEATED: "repeated ", FieldDescriptorProto.LABEL_REQUIRED: "required "}
_MAX_FIELD = 536_870_911
_MAX_ENUM = 2_147_483_647
_EDITION_PREFIX = "EDITION_"


def print_file(file: FileDescriptorProto, imports: Sequence[FileDescriptorProto], *, normalize: bool = False) -> str:
    """Return the text of a file. `imports` explain custom options; with `normalize` imports and fields are sorted."""
    return _Printer(file, imports, normalize=normalize).text()


class _Printer:
    def __init__(self, file: FileDescriptorProto, imports: Sequence[FileDescriptorProto], *, normalize: bool) -> None:
        self._file = file
        self._normalize = normalize
        self._lines: list[str] = []
        self._depth = 0
        self._is_proto3 = file.syntax == "proto3"
        self._is_edition = file.syntax == "editions"
        self._options = _OptionPrinter(imports)
        self._symbols = {name for each in (*imports, file) for name in _symbols(each)}

    def text(self) -> str:
        file = self._file
        if self._is_edition:
            self._put(f'edition = "{_edition(file)}";')
        else:
            self._put(f'syntax = "{file.syntax or "proto2"}";')
        if file.package:
            self._put(f"package {file.package};")
        self._gap(self._imports())
        self._gap(f"option {each};" for each in self._options.of(file.options))
        for message in file.message_type:
            self._blank()
            self._message(message, f".{file.package}" if file.package else "")
        for enum in file.enum_type:
            self._blank()
            self._enum(enum)
        self._extensions(file.extension, f".{file.package}" if file.package else "")
        for service in file.service:
            self._blank()
            self._service(service)
        return "\n".join([*self._lines, ""])

    def _put(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    def _blank(self) -> None:
        if self._lines and self._lines[-1] and not self._lines[-1].endswith("{"):
            self._lines.append("")

    def _gap(self, lines: Iterable[str]) -> None:
        for n, line in enumerate(lines):
            if n == 0:
                self._blank()
            self._put(line)

    def _imports(self) -> list[str]:
        file = self._file
        made = []
        for n, name in enumerate(file.dependency):
            kind = "public " if n in file.public_dependency else "weak " if n in file.weak_dependency else ""
            made.append(f'import {kind}"{name}";')
        return sorted(made) if self._normalize else made

    def _message(self, message: DescriptorProto, scope: str, *, head: str = "") -> None:
        own = f"{scope}.{message.name}"
        self._put(f"{head or 'message ' + message.name} {{")
        self._depth += 1
        for each in self._options.of(message.options):
            self._put(f"option {each};")
        self._reserved(message.reserved_range, message.reserved_name, last_offset=1, last=_MAX_FIELD)
        for span in message.extension_range:
            options = self._options.bracketed(span.options)
            self._put(f"extensions {_span(span.start, span.end - 1, _MAX_FIELD)}{options};")
        self._members(message, own)
        for enum in message.enum_type:
            self._blank()
            self._enum(enum)
        self._extensions(message.extension, own)
        self._depth -= 1
        self._put("}")

    def _members(self, message: DescriptorProto, own: str) -> None:
        """Print fields and nested messages so that reading them gives the nested ones (maps make some) the same order."""
        members = (*message.field, *message.extension)
        groups = {each.type_name for each in members if each.type == FieldDescriptorProto.TYPE_GROUP}
        generated = {f"{own}.{n.name}" for n in message.nested_type if n.options.map_entry} | groups
        order = [f"{own}.{nested.name}" for nested in message.nested_type]
        nested_by_name = {f"{own}.{nested.name}": nested for nested in message.nested_type}
        at = 0

        def print_before(name: str | None) -> None:
            nonlocal at
            while at < len(order) and order[at] != name:
                if order[at] not in generated:
                    self._blank()
                    self._message(nested_by_name[order[at]], own)
                at += 1

        fields = sorted(message.field, key=lambda f: f.number) if self._normalize else list(message.field)
        done: set[int] = set()
        for field in fields:
            if field.HasField("oneof_index") and not field.proto3_optional:
                if field.oneof_index not in done:
                    done.add(field.oneof_index)
                    self._oneof(message, field.oneof_index, own, nested_by_name, fields)
                continue
            if field.type_name in generated and not self._normalize:
                print_before(field.type_name)
            self._field(field, own, nested_by_name)
        print_before(None)

    def _oneof(
        self,
        message: DescriptorProto,
        index: int,
        own: str,
        nested: dict[str, DescriptorProto],
        fields: Sequence[FieldDescriptorProto],
    ) -> None:
        self._put(f"oneof {message.oneof_decl[index].name} {{")
        self._depth += 1
        for each in self._options.of(message.oneof_decl[index].options):
            self._put(f"option {each};")
        for field in fields:
            if field.HasField("oneof_index") and field.oneof_index == index:
                self._field(field, own, nested, in_oneof=True)
        self._depth -= 1
        self._put("}")

    def _field(
        self, field: FieldDescriptorProto, own: str, nested: dict[str, DescriptorProto], *, in_oneof: bool = False
    ) -> None:
        entry = nested.get(field.type_name)
        options = self._field_options(field)
        if entry is not None and entry.options.map_entry:
            key, value = entry.field
            kind = f"map<{_SCALARS[key.type]}, {self._type(value, own)}>"
            self._put(f"{kind} {field.name} = {field.number}{options};")
            return
        label = "" if in_oneof else self._label(field)
        if field.type == FieldDescriptorProto.TYPE_GROUP and entry is not None and not self._is_edition:
            self._message(entry, own, head=f"{label}group {entry.name} = {field.number}{options}")
            return
        self._put(f"{label}{self._type(field, own)} {field.name} = {field.number}{options};")

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label in _LABELS:
            return _LABELS[field.label]
        return "" if self._is_edition or (self._is_proto3 and not field.proto3_optional) else "optional "

    def _field_options(self, field: FieldDescriptorProto) -> str:
        made = []
        if field.HasField("default_value"):
            made.append(f"default = {_default(field)}")
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            made.append(f"json_name = {_quoted(field.json_name)}")
        made += self._options.of(field.options)
        return f" [{', '.join(made)}]" if made else ""

    def _type(self, field: FieldDescriptorProto, scope: str) -> str:
        return _SCALARS[field.type] if field.type in _SCALARS else self._name(field.type_name, scope)

    def _name(self, full: str, scope: str) -> str:
        """Return a type's name without the package where that means the same seen from `scope`, else in full."""
        if not full.startswith("."):
            return full
        package = f".{self._file.package}" if self._file.package else ""
        short = full[len(package) + 1 :] if full.startswith(f"{package}.") else full[1:]
        first = short.partition(".")[0]
        while True:
            if f"{scope}.{first}" in self._symbols:
                return short if f"{scope}.{short}" == full else full
            if not scope:
                return full
            scope = scope.rpartition(".")[0]

    def _extensions(self, found: Sequence[FieldDescriptorProto], scope: str) -> None:
        for name in dict.fromkeys(each.extendee for each in found):
            self._blank()
            self._put(f"extend {self._name(name, scope)} {{")
            self._depth += 1
            for each in found:
                if each.extendee == name:
                    self._field(each, scope, {})
            self._depth -= 1
            self._put("}")

    def _enum(self, enum: EnumDescriptorProto) -> None:
        self._put(f"enum {enum.name} {{")
        self._depth += 1
        for each in self._options.of(enum.options):
            self._put(f"option {each};")
        self._reserved(enum.reserved_range, enum.reserved_name, last_offset=0, last=_MAX_ENUM)
        for value in enum.value:
            self._put(f"{value.name} = {value.number}{self._options.bracketed(value.options)};")
        self._depth -= 1
        self._put("}")

    def _reserved(self, ranges: Sequence[Any], names: Sequence[str], *, last_offset: int, last: int) -> None:
        if ranges:
            self._put(f"reserved {', '.join(_span(each.start, each.end - last_offset, last) for each in ranges)};")
        if names:
            shown = names if self._is_edition else [_quoted(each) for each in names]
            self._put(f"reserved {', '.join(shown)};")

    def _service(self, service: ServiceDescriptorProto) -> None:
        self._put(f"service {service.name} {{")
        self._depth += 1
        for each in self._options.of(service.options):
            self._put(f"option {each};")
        scope = f".{self._file.package}" if self._file.package else ""
        for method in service.method:
            takes = ("stream " if method.client_streaming else "") + self._name(method.input_type, scope)
            gives = ("stream " if method.server_streaming else "") + self._name(method.output_type, scope)
            head = f"rpc {method.name} ({takes}) returns ({gives})"
            options = self._options.of(method.options)
            if not options:
                self._put(f"{head};")
                continue
            self._put(f"{head} {{")
            self._depth += 1
            for each in options:
                self._put(f"option {each};")
            self._depth -= 1
            self._put("}")
        self._depth -= 1
        self._put("}")


class _OptionPrinter:
    """Prints options; the imported files say what custom ones mean."""

    def __init__(self, imports: Sequence[FileDescriptorProto]) -> None:
        self._pool: Any = None
        self._imports = imports

    def of(self, options: Any) -> list[str]:
        """Return `name = value` texts."""
        if not options.ByteSize():
            return []
        known = self._explained(options)
        made = []
        for descriptor, value in known.ListFields():
            if descriptor.full_name == "google.protobuf.MessageOptions.map_entry":
                continue
            name = f"({descriptor.full_name})" if descriptor.is_extension else descriptor.name
            values = value if _is_repeated(descriptor) else [value]
            made += [f"{name} = {_option_value(descriptor, each)}" for each in values]
        return made

    def bracketed(self, options: Any) -> str:
        made = self.of(options)
        return f" [{', '.join(made)}]" if made else ""

    def _explained(self, options: Any) -> Any:
        """Return the options as a message that knows the extensions of the imported files."""
        if not any(each.name == "google/protobuf/descriptor.proto" for each in self._imports):
            return options
        if self._pool is None:
            self._pool = descriptor_pool.DescriptorPool()
            for each in self._imports:
                self._pool.Add(each)
        found = self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
        return message_factory.GetMessageClass(found).FromString(options.SerializeToString())


def _is_repeated(descriptor: Any) -> bool:
    return bool(descriptor.is_repeated)


def _option_value(descriptor: Any, value: Any) -> str:
    if descriptor.type in (descriptor.TYPE_MESSAGE, descriptor.TYPE_GROUP):
        return f"{{ {text_format.MessageToString(value, as_one_line=True).strip()} }}"
    if descriptor.type == descriptor.TYPE_ENUM:
        found = descriptor.enum_type.values_by_number.get(value)
        return found.name if found else str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes):
        return f'"{_escaped(value)}"'
    return repr(value)


def _edition(file: FileDescriptorProto) -> str:
    field: Any = FileDescriptorProto.DESCRIPTOR.fields_by_name["edition"]
    name: str = field.enum_type.values_by_number[file.edition].name
    return name.removeprefix(_EDITION_PREFIX)


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'
    return field.default_value


def _quoted(text: str) -> str:
    return f'"{_escaped(text.encode())}"'


def _escaped(data: bytes) -> str:
    special = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
    return "".join(special.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data)


def _span(first: int, last: int, largest: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last == largest else last}"


def json_name(name: str) -> str:
    """Return the name of a field in JSON when none is given.

    >>> json_name("order_id")
    'orderId'
    """
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _symbols(file: FileDescriptorProto) -> Iterable[str]:
    """Give the full names of all that a name can mean: packages, types, fields, values."""
    package = f".{file.package}" if file.package else ""
    parts = file.package.split(".") if file.package else []
    for n in range(len(parts)):
        yield "." + ".".join(parts[: n + 1])
    for enum in file.enum_type:
        yield f"{package}.{enum.name}"
        yield from (f"{package}.{value.name}" for value in enum.value)
    named: tuple[Any, ...] = (*file.extension, *file.service)
    yield from (f"{package}.{each.name}" for each in named)
    for message in file.message_type:
        yield from _message_symbols(message, package)


def _message_symbols(message: DescriptorProto, scope: str) -> Iterable[str]:
    own = f"{scope}.{message.name}"
    yield own
    named: tuple[Any, ...] = (*message.field, *message.extension, *message.oneof_decl, *message.enum_type)
    yield from (f"{own}.{each.name}" for each in named)
    yield from (f"{own}.{value.name}" for enum in message.enum_type for value in enum.value)
    for nested in message.nested_type:
        yield from _message_symbols(nested, own)
