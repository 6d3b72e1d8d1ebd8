"""Protobuf schemas (2, 3, editions): text, or a serialized descriptor in base64, to file descriptors.

The parser is protoc itself, in this process (`grpcio-tools`): what it takes, every Protobuf compiler takes, and its errors name
line and column. It reads files, so a schema and what it imports are laid out in a directory of their own for as long as it runs.
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
import tempfile
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_tools import _protoc_compiler

from .parsed import InvalidSchema, Limits, Resolved
from .protobuf_text import print_file

OWN_NAME = "logflume-schema.proto"
_IMPORTS_NAME = "logflume-imports.proto"
_IS_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")
_SERIALIZED = re.compile(r"AddSerializedFile\((b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))\)", re.DOTALL)
_lock = threading.Lock()
"""protoc keeps its errors and warnings where the whole process sees them."""


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """A file and the files that it imports, directly and not, each before what uses it; well-known ones too."""

    file: FileDescriptorProto
    imports: tuple[FileDescriptorProto, ...]

    def field_names(self) -> Iterable[str]:
        return [each.name for each in self.file.message_type[0].field] if self.file.message_type else []


def parse(text: str, resolved: Sequence[Resolved], *, limits: Limits) -> ProtobufSchema:
    """Return a schema's descriptors. Raises InvalidSchema: protoc's errors, with line and column."""
    with tempfile.TemporaryDirectory(prefix="logflume-protobuf-") as folder:
        folders = (folder, *_known_folders())
        for each in (*resolved, Resolved(OWN_NAME, text)):  # each behind what it imports
            path = Path(folder, _checked_path(each.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_as_text(each.text, folders), encoding="utf-8")
        found_files = _compile(OWN_NAME, folders)
    ordered: dict[str, FileDescriptorProto] = {}
    _order(OWN_NAME, found_files, ordered)
    own = ordered.pop(OWN_NAME)
    if len(list(_messages(own.message_type))) > limits.nodes:
        raise InvalidSchema(f"a Protobuf schema has at most {limits.nodes} messages")
    return ProtobufSchema(own, tuple(ordered.values()))


def _messages(found: Iterable[DescriptorProto]) -> Iterable[DescriptorProto]:
    for each in found:
        yield each
        yield from _messages(each.nested_type)


def _as_text(text: str, folders: tuple[str, ...]) -> str:
    """Return a schema as text, which may have come as a serialized descriptor."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSchema("a Protobuf schema holds half of a surrogate pair") from None
    if not _IS_BASE64.match(text):
        return text
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=False))
    except (binascii.Error, DecodeError, ValueError):
        return text
    return print_file(file, _imports_of(file, folders))


def _imports_of(file: FileDescriptorProto, folders: tuple[str, ...]) -> list[FileDescriptorProto]:
    """Return what a descriptor imports: it takes that to tell what its custom options mean."""
    if not file.dependency:
        return []
    lines = [f'import "{_checked_path(name)}";' for name in file.dependency]
    Path(folders[0], _IMPORTS_NAME).write_text("\n".join(['syntax = "proto3";', *lines]), encoding="utf-8")
    found = _compile(_IMPORTS_NAME, folders)
    ordered: dict[str, FileDescriptorProto] = {}
    _order(_IMPORTS_NAME, found, ordered)
    del ordered[_IMPORTS_NAME]
    return list(ordered.values())


def _checked_path(name: str) -> str:
    parts = name.split("/")
    if not all(parts) or ".." in parts or "." in parts or len(name) > 500 or any(ord(c) < 32 or c in '\\"' for c in name):
        raise InvalidSchema(f"a reference's name is the path of an import, such as shop/order.proto; found {name[:200]!r}")
    return name


def _order(name: str, files: dict[str, FileDescriptorProto], ordered: dict[str, FileDescriptorProto]) -> None:
    """Add a file behind what it imports. There are no cycles: protoc has refused them."""
    for each in files[name].dependency:
        if each not in ordered:
            _order(each, files, ordered)
    ordered[name] = files[name]


def _compile(name: str, folders: tuple[str, ...]) -> dict[str, FileDescriptorProto]:
    """Return the descriptors of a file and of all that it imports, by path. Raises InvalidSchema."""
    try:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _protoc_compiler.get_protos(name.encode(), [each.encode() for each in folders])
    except _protoc_compiler.ProtocErrors as errors:
        raise InvalidSchema(_told(errors.args[0])) from None
    except Exception as error:  # protoc's own are of no narrower type  # noqa: BLE001
        raise InvalidSchema(f"protoc refuses the schema: {error}") from None
    literals = (found[1] for _, code in made if (found := _SERIALIZED.search(code.decode("utf-8"))))
    files = (FileDescriptorProto.FromString(ast.literal_eval(each)) for each in literals)
    return {each.name: each for each in files}


def _told(errors: Sequence[Any]) -> str:
    """Return protoc's errors as one text: at most ten."""
    lines = []
    for each in errors[:10]:
        message = each.message.decode("utf-8", "replace") if isinstance(each.message, bytes) else str(each.message)
        file = each.filename.decode("utf-8", "replace") if isinstance(each.filename, bytes) else str(each.filename)
        where = "" if file == OWN_NAME else f"{file}, "
        lines.append(f"{where}line {each.line + 1}, column {each.column + 1}: {message}" if each.line >= 0 else where + message)
    return "; ".join(lines)


@cache
def _known_folders() -> tuple[str, ...]:
    """Return where the files are that every schema may import: google/protobuf, google/type, confluent."""
    import google.type
    import grpc_tools

    own = Path(__file__).parent / "protos"
    return (str(own), str(Path(grpc_tools.__file__).parent / "_proto"), str(Path(next(iter(google.type.__path__))).parents[1]))
