"""What a parsed schema is, whatever its language, and what a language has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from logflume.log.errors import InvalidInput
from logflume.log.registry.records import Reference


class InvalidSchema(InvalidInput):
    """A text that is no schema of its language; the message names the place."""

    code = "INVALID_SCHEMA"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A referenced schema: the name it is referred to by, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is parsed and of the versions of a subject, deleted ones too; beyond them a schema is refused."""

    text_chars: int = 1_000_000
    depth: int = 64
    nodes: int = 100_000
    references: int = 256
    versions: int = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class ParsedSchema:
    """A schema of one language. `text` is its canonical form, `tree` what the language makes of it."""

    type: str
    text: str
    references: tuple[Reference, ...]
    tree: Any

    @property
    def fields(self) -> frozenset[str]:
        """Names of the outermost fields."""
        return frozenset(self.tree.field_names())


class Language(Protocol):
    """A schema language: AVRO, JSON, PROTOBUF."""

    def parse(self, text: str, resolved: Sequence[Resolved], *, is_new: bool, limits: Limits) -> Any:
        """Return the tree. `is_new`: names and defaults are checked too, which older schemas may fail. Raises InvalidSchema."""
        ...

    def canonical(self, tree: Any, *, normalize: bool) -> str:
        """Return the canonical text; with `normalize` the same for all schemas that differ in nothing that matters."""
        ...

    def formatted(self, tree: Any, form: str) -> str:
        """Return the text in another form that the language knows; an unknown form gives the canonical one."""
        ...
