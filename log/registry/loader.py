"""Schemas of the registry, parsed: references are resolved from the state, and what was parsed lately is kept.

The cache is bounded by the characters of the texts in it. A parsed schema of one digest never changes, so nothing in it goes
stale, as long as what is referred to cannot be replaced: a version that is referred to cannot be deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .errors import Fault, RegistryError
from .records import Metadata, Reference, RuleSet, SchemaValue, references_of
from .requests import LATEST, SchemaRequest
from .schemas import DEFAULT_LIMITS, InvalidSchema, Limits, ParsedSchema, Resolved, parse
from .state import State
from .subjects import context_of, qualify

CACHE_CHARS = 32_000_000
_OVERHEAD_CHARS = 500


class Loader:
    """Parses for one state. Not for two threads at once."""

    def __init__(self, state: State, *, limits: Limits = DEFAULT_LIMITS, cache_chars: int = CACHE_CHARS) -> None:
        self.limits = limits
        self._state = state
        self._cache: OrderedDict[tuple[object, ...], ParsedSchema] = OrderedDict()
        self._room_chars = cache_chars

    def load(self, value: SchemaValue) -> ParsedSchema:
        """Return a registered schema, parsed. Raises RegistryError when it is broken (another registry may have written it)."""
        return self.parse(value.subject, value.type, value.schema, references_of(value))

    def request(self, subject: str, request: SchemaRequest, *, is_new: bool, normalize: bool) -> ParsedSchema:
        """Return the schema of a request as it would be registered under a subject. Raises RegistryError."""
        text = request.schema or ""
        return self.parse(subject, request.type, text, request.references or (), is_new=is_new, normalize=normalize)

    def parse(
        self,
        subject: str,
        type_: str,
        text: str,
        references: Sequence[Reference],
        *,
        is_new: bool = False,
        normalize: bool = False,
    ) -> ParsedSchema:
        """Return a schema parsed, or as it was parsed before."""
        references = tuple(references)
        key = (type_, text, references, context_of(subject) if references else None, is_new, normalize)
        found = self._cache.get(key)
        if found is not None and not any(each.version == LATEST for each in references):
            self._cache.move_to_end(key)
            return found
        try:
            resolved = self._resolve(references, subject)
            made = parse(type_, text, references, resolved, is_new=is_new, normalize=normalize, limits=self.limits)
        except InvalidSchema as error:
            raise RegistryError(Fault.INVALID_SCHEMA, f"Invalid schema of type {type_}, details: {error}") from error
        self._keep(key, made, len(text))
        return made

    def _keep(self, key: tuple[object, ...], made: ParsedSchema, chars: int) -> None:
        self._cache[key] = made
        self._room_chars -= chars + _OVERHEAD_CHARS
        while self._room_chars < 0 and len(self._cache) > 1:
            (_, text, *_), _ = self._cache.popitem(last=False)
            self._room_chars += len(str(text)) + _OVERHEAD_CHARS

    def _resolve(self, references: Sequence[Reference], subject: str) -> list[Resolved]:
        """Return what is referred to, and what that refers to, each before its user; each name once."""
        done: dict[str, Resolved] = {}
        self._collect(references, subject, done, set())
        return list(done.values())

    def _collect(
        self, references: Sequence[Reference], subject: str, done: dict[str, Resolved], under_way: set[tuple[str, int]]
    ) -> None:
        for each in references:
            name = qualify(each.subject, subject)
            found = self._state.latest(name) if each.version == LATEST else self._state.version(name, each.version, deleted=True)
            if found is None:
                raise InvalidSchema(f"No schema reference found for subject {name!r} and version {each.version}")
            place = (found.subject, found.version)
            if each.name in done or place in under_way:
                continue
            if len(done) + len(under_way) > self.limits.references:
                raise InvalidSchema(f"a schema has at most {self.limits.references} references")
            under_way.add(place)
            self._collect(references_of(found), found.subject, done, under_way)
            under_way.discard(place)
            done[each.name] = Resolved(each.name, found.schema)


def same_identity(
    left: tuple[Metadata | None, RuleSet | None], right: tuple[Metadata | None, RuleSet | None], *, but_version: bool
) -> bool:
    """Return whether metadata and rules are equal; with `but_version` the property `confluent:version` does not count."""
    if not but_version:
        return left == right
    return (_without_version(left[0]), left[1]) == (_without_version(right[0]), right[1])


VERSION_PROPERTY = "confluent:version"


def _without_version(metadata: Metadata | None) -> Metadata | None:
    if metadata is None or VERSION_PROPERTY not in (metadata.properties or {}):
        return metadata
    kept = {name: value for name, value in (metadata.properties or {}).items() if name != VERSION_PROPERTY}
    if not kept and not metadata.tags and not metadata.sensitive:
        return None
    return Metadata(kept or None, metadata.sensitive, metadata.tags)
