"""Whether data of one Avro schema can be read with another (Avro specification, "Schema Resolution")."""

from __future__ import annotations

from logflume.log.registry.schemas.avro import AvroField, AvroSchema, AvroType

from .difference import Difference

_READABLE_AS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
"""A reader's kind to the writer's kinds that are promoted to it."""
_DESCRIPTIONS = {
    "FIXED_SIZE_MISMATCH": (
        "The size of FIXED type field at path '{place}' in the {{}} schema does not match with the {{}} schema"
    ),
    "TYPE_MISMATCH": "The type (path '{place}') of a field in the {{}} schema does not match with the {{}} schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{place}')",
    "MISSING_ENUM_SYMBOLS": "The {{}} schema is missing enum symbols '{detail}' at path '{place}' in the {{}} schema",
    "MISSING_UNION_BRANCH": "The {{}} schema is missing a type inside a union field at path '{place}' in the {{}} schema",
    "READER_FIELD_MISSING_DEFAULT_VALUE": (
        "The field '{detail}' at path '{place}' in the {{}} schema has no default value and is missing in the {{}} schema"
    ),
}


def differences(reader: AvroSchema, writer: AvroSchema) -> list[Difference]:
    """Return why `reader` cannot read what was written with `writer`; [] when it can."""
    return list(_Comparison().compare(reader.root, writer.root, ()))


def _objection(rule: str, path: tuple[str, ...], detail: str) -> Difference:
    place = "/" + "/".join(path)
    return Difference(rule, place, _DESCRIPTIONS[rule].format(place=place, detail=_braces(detail)), detail)


def _braces(text: str) -> str:
    return text.replace("{}", "{ }")


class _Comparison:
    """One comparison: a pair of named types that is under way, or was found good, is not looked at again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Difference, ...]] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
        if not (reader.is_named and writer.is_named):
            return self._compare(reader, writer, path)
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = ()
            self._known[pair] = self._compare(reader, writer, path)
        return self._known[pair]

    def _compare(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
        if _kind(reader) != _kind(writer):
            return self._of_different_kinds(reader, writer, path)
        match reader.kind:
            case "array" | "map":
                assert reader.items is not None
                assert writer.items is not None
                return self.compare(reader.items, writer.items, (*path, "items" if reader.kind == "array" else "values"))
            case "fixed":
                return (*_names(reader, writer, path), *_sizes(reader, writer, path))
            case "enum":
                return (*_names(reader, writer, path), *_symbols(reader, writer, path))
            case "record" | "error":
                return (*_names(reader, writer, path), *self._fields(reader, writer, path))
            case "union":
                return tuple(
                    _lacks(branch, (*path, str(n)))
                    for n, branch in enumerate(writer.branches)
                    if self.compare(reader, branch, path)
                )
        return ()

    def _of_different_kinds(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
        if writer.kind == "union":
            return tuple(found for branch in writer.branches for found in self.compare(reader, branch, path))
        if reader.kind == "union":
            if any(not self.compare(branch, writer, path) for branch in reader.branches):
                return ()
            return (_lacks(writer, path),)
        if writer.kind in _READABLE_AS.get(reader.kind, ()):
            return ()
        detail = f"reader type: {_kind(reader).upper()} not compatible with writer type: {_kind(writer).upper()}"
        return (_objection("TYPE_MISMATCH", path, detail),)

    def _fields(self, reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
        by_name = {each.name: each for each in writer.fields}
        found: list[Difference] = []
        for n, field in enumerate(reader.fields):
            place = (*path, "fields", str(n))
            written = _written(field, by_name)
            if written is not None:
                found += self.compare(field.type, written.type, (*place, "type"))
            elif not field.has_default:
                found.append(_objection("READER_FIELD_MISSING_DEFAULT_VALUE", place, field.name))
        return tuple(found)


def _kind(type_: AvroType) -> str:
    return "record" if type_.kind == "error" else type_.kind


def _written(field: AvroField, by_name: dict[str, AvroField]) -> AvroField | None:
    return next((by_name[name] for name in (field.name, *field.aliases) if name in by_name), None)


def _lacks(writer: AvroType, path: tuple[str, ...]) -> Difference:
    return _objection("MISSING_UNION_BRANCH", path, f"reader union lacking writer type: {_kind(writer).upper()}")


def _names(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
    if reader.short_name == writer.short_name or writer.name in reader.aliases:
        return ()
    return (_objection("NAME_MISMATCH", (*path, "name"), f"expected: {writer.name}"),)


def _sizes(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
    if reader.size == writer.size:
        return ()
    return (_objection("FIXED_SIZE_MISMATCH", (*path, "size"), f"expected: {writer.size}, found: {reader.size}"),)


def _symbols(reader: AvroType, writer: AvroType, path: tuple[str, ...]) -> tuple[Difference, ...]:
    lost = sorted(set(writer.symbols) - set(reader.symbols))
    if not lost or reader.enum_default is not None:
        return ()
    return (_objection("MISSING_ENUM_SYMBOLS", (*path, "symbols"), f"[{', '.join(lost)}]"),)
