"""The message tables: which fields each API of the Kafka protocol has in which version, as data.

One file of `tables/` per API. The notation, one field a line, nested by two spaces:

    api 0 Produce
    request 3-13 flexible 9+
      transactional_id: string? = null
      topic_data: []TopicProduceData
        name: string 3-12

`name: type [versions] [tag N [versions]] [= default]`. Versions are `3`, `3-12` or `3+`; without them those of the enclosing
structure. `?` after the type: may be null (`?7+`: in these versions). `flexible 9+`: from this version on lengths are
varints and structures end in tagged fields. `struct Name` declares a structure that several fields use.
Follows the message definitions of the Kafka protocol guide (4.3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from logflume.log.errors import UnknownName

PRIMITIVES = frozenset(
    {"bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "bytes", "uuid", "records"}
)
Default = bool | int | float | str | None


class Versions(NamedTuple):
    """A range of versions, both ends included."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """A field. `type_name` is a primitive or the name of a structure; `default` is None for null."""

    name: str
    type_name: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: Default


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure: its fields in wire order."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message: the top structure, all structures by name, valid and flexible versions."""

    name: str
    api_key: int
    versions: Versions
    flexible: Versions
    top: Struct
    structs: dict[str, Struct]


@dataclass(frozen=True, slots=True)
class Api:
    """An API: its key, its name without Request and Response, and its two messages, which have the same versions."""

    key: int
    name: str
    request: Message
    response: Message

    @property
    def versions(self) -> Versions:
        return self.request.versions


@cache
def api_names() -> dict[str, int]:
    """Return the API key of each API's name, in order of the keys."""
    names = {}
    for entry in files(__package__).joinpath("tables").iterdir():
        if entry.name[0].isdigit():
            _, key, name = entry.read_text("utf-8").split("\n", 1)[0].split()
            names[name] = int(key)
    return dict(sorted(names.items(), key=lambda item: item[1]))


@cache
def _names_by_key() -> dict[int, str]:
    return {key: name for name, key in api_names().items()}


@cache
def api(key: int) -> Api:
    """Return the table of an API. Raises UnknownName."""
    name = _names_by_key().get(key)
    if name is None:
        raise UnknownName("API key", str(key), map(str, _names_by_key()))
    return parse_api(_read(f"{key:02d}_{_snake(name)}.api"))


def api_named(name: str) -> Api:
    """Return the table of an API by its name (`Produce`). Raises UnknownName."""
    key = api_names().get(name)
    if key is None:
        raise UnknownName("API", name, api_names())
    return api(key)


@cache
def data_message(name: str) -> Message:
    """Return the table of a message that travels inside other messages (`ConsumerProtocolSubscription`)."""
    lines = _lines(_read(f"{_snake(name)}.api"))
    assert lines[0][1] == f"data {name}", lines[0]
    return _parse_message(name, -1, lines[1][1], lines[2:])


def data_message_names() -> list[str]:
    """Return the names of all messages that travel inside other messages, in order."""
    texts = [entry.read_text("utf-8") for entry in files(__package__).joinpath("tables").iterdir() if not entry.name[0].isdigit()]
    return sorted(text.split("\n", 1)[0].split()[1] for text in texts)


def parse_api(text: str) -> Api:
    """Parse one table."""
    lines = _lines(text)
    _, key, name = lines[0][1].split()
    middle = next(i for i, (indent, line) in enumerate(lines) if indent == 0 and line.startswith("response "))
    request = _parse_message(f"{name}Request", int(key), lines[1][1], lines[2:middle])
    response = _parse_message(f"{name}Response", int(key), lines[middle][1], lines[middle + 1 :])
    assert request.versions == response.versions, name
    return Api(int(key), name, request, response)


def _read(file_name: str) -> str:
    return files(__package__).joinpath("tables", file_name).read_text("utf-8")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _lines(text: str) -> list[tuple[int, str]]:
    """Split into (depth, text), leaving out empty lines."""
    return [((len(line) - len(line.lstrip())) // 2, line.strip()) for line in text.split("\n") if line.strip()]


def _parse_message(name: str, api_key: int, head: str, lines: list[tuple[int, str]]) -> Message:
    words = head.split()
    versions = _parse_versions(words[1], NO_VERSIONS)
    flexible = _parse_versions(words[3], versions) if len(words) > 2 else NO_VERSIONS
    structs: dict[str, Struct] = {}
    own = [i for i, (depth, line) in enumerate(lines) if depth == 1 and line.startswith("struct ")]
    rest = lines
    for start in reversed(own):
        end = next((i for i in range(start + 1, len(lines)) if lines[i][0] == 1), len(lines))
        struct_name = lines[start][1].split()[1]
        structs[struct_name] = Struct(struct_name, _parse_fields(lines[start + 1 : end], 2, versions, flexible, structs))
        rest = rest[:start] + rest[end:]
    top = Struct(name, _parse_fields(rest, 1, versions, flexible, structs))
    return Message(name, api_key, versions, flexible, top, structs)


def _parse_fields(
    lines: list[tuple[int, str]], depth: int, versions: Versions, flexible: Versions, structs: dict[str, Struct]
) -> tuple[Field, ...]:
    """Parse the lines at `depth`; deeper ones are the structures of the field before them and go into `structs`."""
    fields = []
    starts = [i for i, (own_depth, _) in enumerate(lines) if own_depth == depth]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        field = _parse_field(lines[start][1], versions, flexible)
        nested = lines[start + 1 : end]
        if nested:
            assert field.type_name not in structs, field.type_name
            structs[field.type_name] = Struct(
                field.type_name, _parse_fields(nested, depth + 1, field.versions, flexible, structs)
            )
        fields.append(field)
    return tuple(fields)


_FIELD = re.compile(
    r"(?P<name>\w+): (?P<array>\[\])?(?P<type>\w+)(?P<null>\?(?P<nullable>[\d+-]*))?"
    r"(?: (?P<versions>\d[\d+-]*))?(?: tag (?P<tag>\d+)(?: (?P<tagged>\d[\d+-]*))?)?(?: = (?P<default>\S+))?"
)


def _parse_field(line: str, outer: Versions, flexible: Versions) -> Field:
    match = _FIELD.fullmatch(line)
    assert match, line
    versions = _parse_versions(match["versions"], outer) if match["versions"] else outer
    nullable = NO_VERSIONS
    if match["null"]:
        nullable = _parse_versions(match["nullable"], outer) if match["nullable"] else versions
    tagged = NO_VERSIONS
    if match["tag"]:
        tagged = _parse_versions(match["tagged"], outer) if match["tagged"] else versions
        assert tagged.first >= flexible.first, line
    type_name, is_array = match["type"], bool(match["array"])
    return Field(
        name=match["name"],
        type_name=type_name,
        is_array=is_array,
        versions=versions,
        nullable=nullable,
        tag=int(match["tag"]) if match["tag"] else None,
        tagged=tagged,
        default=_parse_default(match["default"], type_name, is_array=is_array),
    )


def _parse_versions(text: str, outer: Versions) -> Versions:
    first, _, last = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return Versions(int(first), outer.last)
    return Versions(int(first), int(last or first))


def _parse_default(text: str | None, type_name: str, *, is_array: bool) -> Default:
    """Return the default of one value; for arrays and structures only None (null) or 0 (a new empty one) has a meaning."""
    if text == "null":
        return None
    if is_array or type_name not in PRIMITIVES:
        return 0
    if type_name in ("string", "bytes", "records", "uuid"):
        return text or ""
    if type_name == "bool":
        return text == "true"
    return float(text or 0) if type_name == "float64" else int(text or 0)
