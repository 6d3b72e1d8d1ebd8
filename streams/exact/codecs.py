"""Bytes <-> locals: the text that decodes the columns that are used, and the expressions that encode results.

JSON rows of scalars are decoded straight into a msgspec Struct that has only the used fields; anything that does not fit it as
it is goes to the serde, which decides. So both ways give the same rows. All other formats and types take the serde.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import (
    Column,
    FormatSpec,
    Kind,
    any_json,
    check_nesting,
    columns_of,
    has_named_tuples,
    java_double_text,
    object_codec,
    part_decode,
    serde,
)

from .expressions import Fragment, Namespace, identifier
from .writer import Writer

_FAST: dict[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.DOUBLE: float,
    Kind.STRING: str,
    Kind.ANY: Any,
    Kind.INTEGER: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)],
    Kind.DATE: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)],
    Kind.BIGINT: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    Kind.TIMESTAMP: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    Kind.TIME: Annotated[int, msgspec.Meta(ge=0, le=86_399_999)],
}
_write_plain = msgspec.json.Encoder().encode
_WRITTEN_AS_IS = frozenset(
    {Kind.BOOLEAN, Kind.DOUBLE, Kind.STRING, Kind.INTEGER, Kind.BIGINT, Kind.DATE, Kind.TIME, Kind.TIMESTAMP}
)


def write_decode(
    writer: Writer,
    namespace: Namespace,
    label: str,
    format: FormatSpec,
    columns: Sequence[Column],
    used: Sequence[str],
    data: str,
    null: str,
    on_error: Sequence[str],
    *,
    bare_class: Any = None,
) -> list[str]:
    """Write text that turns the bytes in local `data` into one local per used column, in order, and return their names.

    A null value sets `null` to True and the locals to None. Bytes that cannot be decoded run `on_error`, which must leave the
    loop; `error` is the DecodeError. `bare_class`: the class of a bare JSON value (None: plain Python objects).
    """
    wanted = frozenset(used)
    kept = tuple(column for column in columns if column.name in wanted)
    names = [writer.local(identifier(column.name)) for column in kept]
    namespace.add("DecodeError", DecodeError)
    nothing = " = ".join([*names, "None"])
    with writer.block(f"if {data} is None:"):
        writer.line(f"{null} = True")
        if names:
            writer.line(nothing)
    with writer.block("else:"):
        writer.line(f"{null} = False")
        if format.name == "JSON" and _is_fast(format, columns, kept):
            _write_fast(writer, namespace, label, format, columns, kept, names, data, null, on_error, bare_class)
        else:
            _write_serde(writer, namespace, label, format, tuple(columns), kept, names, data, null, on_error)
    return names


def _is_fast(format: FormatSpec, columns: Sequence[Column], kept: tuple[Column, ...]) -> bool:
    if not format.is_wrapped and len(columns) == 1:
        return columns[0].type.kind is Kind.ANY
    return all(column.type.kind in _FAST for column in kept)


def _write_fast(
    writer: Writer,
    namespace: Namespace,
    label: str,
    format: FormatSpec,
    columns: Sequence[Column],
    kept: tuple[Column, ...],
    names: list[str],
    data: str,
    null: str,
    on_error: Sequence[str],
    bare_class: Any,
) -> None:
    is_bare = not format.is_wrapped and len(columns) == 1
    namespace.add("FAST_ERRORS", (msgspec.MsgspecError, UnicodeDecodeError, RecursionError))
    with writer.block("try:"):
        if any(column.type.kind is Kind.ANY for column in kept):
            writer.line(f"{namespace.add('check_nesting', check_nesting)}({data})")
        if is_bare:
            loads = namespace.add(f"load_{label}", _bare_loads(bare_class) if kept else msgspec.json.Decoder(msgspec.Raw).decode)
            writer.line(f"{names[0]} = {loads}({data})" if names else f"{loads}({data})")
        else:
            loads = namespace.add(f"load_{label}", msgspec.json.Decoder(_row_class(columns, kept)).decode)
            row = writer.local("row")
            writer.line(f"{row} = {loads}({data})")
            _write_fields(writer, namespace, columns, kept, names, row)
    with writer.block("except FAST_ERRORS:"):
        _write_serde(writer, namespace, label, format, tuple(columns), kept, names, data, null, on_error)
    if is_bare and names:
        with writer.block(f"if {names[0]} is None:"):
            writer.line(f"{null} = True")


def _bare_loads(cls: Any) -> Callable[[bytes], Any]:
    """Return what reads a bare value of a class; one with NamedTuples by its columns, for msgspec takes these for arrays."""
    if cls is None or not has_named_tuples(cls):
        return msgspec.json.Decoder(cls or Any).decode
    decode, make = serde(FormatSpec("JSON"), columns_of(cls)).decode, object_codec(cls).from_row

    def loads(data: bytes) -> Any:
        try:
            return make(decode(data))
        except (DecodeError, ValueError, TypeError) as error:
            raise msgspec.ValidationError(str(error)) from None

    return loads


def other_spellings(columns: Sequence[Column], kept: tuple[Column, ...]) -> dict[str, str]:
    """Return name -> lower-case spelling of the columns that are also looked up that way (unquoted SQL names)."""
    taken = {column.name for column in columns}
    return {c.name: c.name.lower() for c in kept if c.name == c.name.upper() and c.name.lower() not in taken}


def _row_class(columns: Sequence[Column], kept: tuple[Column, ...]) -> Any:
    """Return a Struct with the used fields; one that is missing is UNSET where another spelling may be there, else null."""
    folded = other_spellings(columns, kept)
    fields: list[Any] = []
    rename: dict[str, str] = {}
    for i, column in enumerate(kept):
        annotation = Any if column.type.kind is Kind.ANY else _FAST[column.type.kind] | None
        may_differ = column.name == column.name.upper()
        kind = annotation | msgspec.UnsetType if may_differ and annotation is not Any else annotation
        fields.append((f"f{i}", kind, msgspec.UNSET if may_differ else None))
        rename[f"f{i}"] = column.name
        if column.name in folded:
            fields.append((f"g{i}", kind, msgspec.UNSET))
            rename[f"g{i}"] = folded[column.name]
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _write_fields(
    writer: Writer, namespace: Namespace, columns: Sequence[Column], kept: tuple[Column, ...], names: list[str], row: str
) -> None:
    folded = other_spellings(columns, kept)
    for i, (column, name) in enumerate(zip(kept, names, strict=True)):
        writer.line(f"{name} = {row}.f{i}")
        if column.name != column.name.upper():
            continue
        namespace.add("UNSET", msgspec.UNSET)
        namespace.add("OtherSpelling", msgspec.ValidationError)
        with writer.block(f"if {name} is UNSET:"):
            if column.name in folded:
                writer.line(f"{name} = {row}.g{i}")
                with writer.block(f"if {name} is UNSET:"):
                    writer.line("raise OtherSpelling")
            else:
                writer.line("raise OtherSpelling")


def _write_serde(
    writer: Writer,
    namespace: Namespace,
    label: str,
    format: FormatSpec,
    columns: tuple[Column, ...],
    kept: tuple[Column, ...],
    names: list[str],
    data: str,
    null: str,
    on_error: Sequence[str],
) -> None:
    decode = namespace.add(f"decode_{label}", part_decode(format, columns, kept))
    row = writer.local("row")
    with writer.block("try:"):
        writer.line(f"{row} = {decode}({data})")
    with writer.block("except DecodeError as error:"):
        for text in on_error:
            writer.line(text)
    with writer.block(f"if {row} is None:"):
        writer.line(f"{null} = True")
        if names:
            writer.line(" = ".join([*names, "None"]))
    if names:
        with writer.block("else:"):
            writer.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {row}")


def encode_fragment(
    namespace: Namespace, label: str, format: FormatSpec, columns: Sequence[Column], values: Sequence[Fragment]
) -> Fragment:
    """Return an expression that gives the bytes of a row (never of a null row). It can raise InvalidInput or a codec's error."""
    columns = tuple(columns)
    if format.name == "KAFKA" and len(columns) == 1 and columns[0].type.kind is Kind.STRING:
        only = values[0]
        name = namespace.add("to_utf8", str.encode)
        code = f"{name}({only.code})" if not only.is_nullable else f"(None if {only.code} is None else {name}({only.code}))"
        return Fragment(code, is_nullable=only.is_nullable, can_fail=True)
    if (
        format.name == "JSON"
        and (format.is_wrapped or len(columns) > 1)
        and all(c.type.kind in _WRITTEN_AS_IS and not format.writes_text(c.type.kind) for c in columns)
    ):
        dumps = namespace.add("dumps", _write_plain)
        holder = namespace.add(f"Out_{label}", _holder(columns))
        parts = [_json_value(namespace, c, v) for c, v in zip(columns, values, strict=True)]
        return Fragment(f"{dumps}({holder}({', '.join(parts)}))", is_nullable=False, can_fail=True)
    if format.name == "JSON" and not format.is_wrapped and len(columns) == 1 and columns[0].type.kind is Kind.ANY:
        only = values[0]
        dumps = namespace.add("dumps", any_json)
        return Fragment(f"(None if {only.code} is None else {dumps}({only.code}))", can_fail=True)
    encode = namespace.add(f"encode_{label}", serde(format, columns).encode)
    return Fragment(f"{encode}(({''.join(v.code + ', ' for v in values)}))", can_fail=True)


def _holder(columns: tuple[Column, ...]) -> Any:
    names = {f"f{i}": column.name for i, column in enumerate(columns)}
    return msgspec.defstruct("Out", [(name, object) for name in names], rename=names, gc=False)


def _json_value(namespace: Namespace, column: Column, value: Fragment) -> str:
    """JSON has no NaN or infinity: they are written as text, as the JSON serde does."""
    if column.type.kind is not Kind.DOUBLE:
        return value.code
    text = namespace.add("double_text", java_double_text)
    finite = f"{value.code} if {value.code} - {value.code} == 0.0 else {text}({value.code})"
    return f"(None if {value.code} is None else {finite})" if value.is_nullable else f"({finite})"


def check_format(format: FormatSpec, columns: Sequence[Column], where: str) -> None:
    """Raise InvalidInput when the format cannot hold the columns."""
    try:
        serde(format, tuple(columns))
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
