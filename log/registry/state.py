"""The registry's state: what the records of `_schemas` say, applied in order. Pure; knows no log and no HTTP.

Every index is derived from the records, so a state is the same whoever builds it. A record that nobody can read, or that would
give one id two meanings, is counted, kept out and can be found in the log by its offset.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from .guid import digest_of
from .records import (
    ClearSubjectValue,
    ConfigValue,
    ContextValue,
    DeleteSubjectValue,
    Entry,
    Key,
    KeyType,
    ModeValue,
    SchemaValue,
    is_known,
    references_of,
)
from .subjects import ANY_CONTEXT, DEFAULT_CONTEXT, GLOBAL_CONTEXT, Subject, context_of, parse_subject, prefix_of, qualify

READWRITE = "READWRITE"
MODES = (READWRITE, "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
_NO_CONFIG = ConfigValue()
_GLOBAL = prefix_of(GLOBAL_CONTEXT)
T = TypeVar("T")


@dataclass(slots=True)
class _Context:
    """What is counted separately for each context. `undigested`: schemas that `by_digest` does not have yet, in their order."""

    ids: dict[int, dict[tuple[str, int], None]] = field(default_factory=dict)
    by_digest: dict[bytes, int] = field(default_factory=dict)
    undigested: list[SchemaValue] = field(default_factory=list)
    max_id: int = 0

    def digests(self) -> dict[bytes, int]:
        """Return the ids by digest. They are asked for less often than a topic is read, which they would take a quarter of."""
        if self.undigested:
            self.digest(len(self.undigested))
        return self.by_digest

    def digest(self, count: int) -> None:
        """Take in the next schemas, so many at most."""
        taken, self.undigested = self.undigested[:count], self.undigested[count:]
        for each in taken:
            self.by_digest[_digest(each)] = each.id


def _digest(value: SchemaValue) -> bytes:
    return digest_of(value.schema, value.references or (), value.metadata, value.rule_set)


class State:
    """Subjects, ids, settings. Changed by `apply` alone; one thread at a time."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, SchemaValue]] = {}
        self.configs: dict[str | None, ConfigValue] = {}
        self.modes: dict[str | None, str] = {}
        self.contexts: dict[str, None] = {}
        self.unreadable = 0
        self.conflicts = 0
        self.schemas = 0
        self._by_context: dict[str, _Context] = {}
        self._referrers: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
        self._names: dict[bool, list[str]] = {}

    # reading

    def version(self, subject: str, version: int, *, deleted: bool = False) -> SchemaValue | None:
        """Return a version; a soft-deleted one only with `deleted`."""
        found = self.versions.get(subject, {}).get(version)
        return None if found is None or (found.deleted and not deleted) else found

    def all_versions(self, subject: str, *, deleted: bool = False) -> list[SchemaValue]:
        """Return the versions of a subject, oldest first."""
        found = self.versions.get(subject, {})
        return [found[n] for n in sorted(found) if deleted or not found[n].deleted]

    def latest(self, subject: str) -> SchemaValue | None:
        """Return the newest version that is not deleted."""
        found = self.versions.get(subject, {})
        live = [n for n, each in found.items() if not each.deleted]
        return found[max(live)] if live else None

    def has_subject(self, text: str, *, deleted: bool) -> bool:
        """Return whether a subject, or any subject of a context, has versions."""
        wanted = parse_subject(text)
        if wanted.name:
            return any(deleted or not each.deleted for each in self.versions.get(text, {}).values())
        return any(True for _ in self.in_scope(text, deleted=deleted))

    def in_scope(self, text: str | None, *, deleted: bool) -> Iterator[str]:
        """Give the subjects that a subject, a context or (None) the default context names."""
        wanted = parse_subject(text or "")
        names = self.subject_names(deleted=deleted)
        if wanted.name:
            yield from (name for name in (text,) if name in self.versions and self.has_subject(name, deleted=deleted))
        elif wanted.context == GLOBAL_CONTEXT:
            yield from names
        else:
            yield from (name for name in names if context_of(name) == wanted.context)

    def subject_names(self, *, deleted: bool) -> list[str]:
        """Return all subjects in order; those that have only deleted versions with `deleted`. Not to be changed by the caller."""
        if deleted not in self._names:
            self._names[deleted] = sorted(
                name for name, found in self.versions.items() if deleted or any(not each.deleted for each in found.values())
            )
        return self._names[deleted]

    def with_prefix(self, prefix: str, *, deleted: bool) -> list[str]:
        """Return the subjects that a prefix selects: `:*:` of any context, `:.eu:ord` of one, `ord` of the default one."""
        wanted = parse_subject(prefix)
        names = self.subject_names(deleted=deleted)
        if wanted.context == ANY_CONTEXT:
            if not wanted.name:
                return names
            return [name for name in names if parse_subject(name).name.startswith(wanted.name)]
        start = str(wanted)
        first = bisect.bisect_left(names, start)
        last = bisect.bisect_left(names, start + "\U0010ffff", lo=first)
        found = names[first:last]
        return [name for name in found if name[:1] != ":"] if wanted.context == DEFAULT_CONTEXT else found

    def ids_of(self, context: str, id_: int) -> list[tuple[str, int]]:
        """Return where an id of a context is registered: (subject, version)."""
        found = self._by_context.get(context)
        return list(found.ids.get(id_, ())) if found else []

    def by_id(self, id_: int, subject: str | None) -> SchemaValue | None:
        """Return a schema by its id, in the context that `subject` names, else in any: under that subject if it has one.

        Deleted versions count: what was written with an id stays readable.
        """
        wanted = parse_subject(subject or "")
        found = self._in_context(wanted.context, id_, str(wanted) if wanted.name else None)
        if found is None and wanted.name:
            found = self._in_context(wanted.context, id_, None)
        if found is None and wanted.context == DEFAULT_CONTEXT:
            found = next((hit for ctx in self.contexts if (hit := self._by_name(ctx, id_, wanted))), None)
        return found

    def _by_name(self, context: str, id_: int, wanted: Subject) -> SchemaValue | None:
        return self._in_context(context, id_, str(Subject(context, wanted.name)) if wanted.name else None)

    def _in_context(self, context: str, id_: int, subject: str | None) -> SchemaValue | None:
        for name, version in self.ids_of(context, id_):
            if subject is None or name == subject:
                return self.versions[name][version]
        return None

    def id_by_digest(self, context: str, digest: bytes) -> int | None:
        """Return the id that a schema has in a context, None when it was never registered there."""
        found = self._by_context.get(context)
        return found.digests().get(digest) if found else None

    def max_id(self, context: str) -> int:
        """Return the highest id that was ever given in a context, 0 when none was."""
        found = self._by_context.get(context)
        return found.max_id if found else 0

    def all_contexts(self) -> list[str]:
        """Return the names of all contexts, the default one first."""
        return [DEFAULT_CONTEXT, *sorted(self.contexts)]

    def referrers(self, subject: str, version: int, *, deleted: bool) -> list[SchemaValue]:
        """Return the schemas that refer to a version."""
        found = (self.versions[name][n] for name, n in self._referrers.get((subject, version), ()))
        return [each for each in found if deleted or not each.deleted]

    def config(self, subject: str | None) -> ConfigValue | None:
        """Return the configuration set for exactly this subject or context; None (all): the top level."""
        return self.configs.get(subject)

    def config_in_scope(self, subject: str | None) -> ConfigValue:
        """Return what is in force: the subject's own, then its context's or the top level's, then that of all contexts."""
        if not self.configs:
            return _NO_CONFIG
        own = self.configs.get(subject) if subject is not None else None
        chain = [own, self._behind(self.configs, subject), self.configs.get(_GLOBAL)]
        return merge_configs([each for each in chain if each is not None])

    def mode(self, subject: str | None) -> str | None:
        """Return the mode set for exactly this subject or context."""
        return self.modes.get(subject)

    def mode_in_scope(self, subject: str | None) -> str:
        """Return the mode in force. READONLY_OVERRIDE of all contexts or of a context outweighs what lies in front of it."""
        behind = self._behind(self.modes, subject)
        everywhere = self.modes.get(_GLOBAL)
        if "READONLY_OVERRIDE" in (behind, everywhere):
            return "READONLY_OVERRIDE"
        own = self.modes.get(subject) if subject is not None else None
        return own or behind or everywhere or READWRITE

    def _behind(self, settings: dict[str | None, T], subject: str | None) -> T | None:
        context = context_of(subject or "")
        return settings.get(None if context == DEFAULT_CONTEXT else prefix_of(context))

    def prepare(self, count: int) -> bool:
        """Find the digests of so many schemas, which the first lookup would have to; return whether there are more."""
        open_ = next((context for context in self._by_context.values() if context.undigested), None)
        if open_ is not None:
            open_.digest(count)
        return open_ is not None

    # changing

    def apply(self, entries: Iterable[Entry]) -> None:
        """Take records in, in the order of the log."""
        for entry in entries:
            key, value = entry.key, entry.value
            if isinstance(value, SchemaValue) and key.subject is not None and key.keytype == "SCHEMA":
                self._put(key.subject, key.version, value)
            else:
                self._apply(key, entry)

    def _apply(self, key: Key, entry: Entry) -> None:
        value = entry.value
        if not is_known(key):
            self.unreadable += 1
        elif key.keytype == KeyType.SCHEMA and key.subject is not None:
            if value is None:
                self._remove(key.subject, key.version)
        elif key.keytype == KeyType.CONFIG:
            self._set(self.configs, key.subject, value if isinstance(value, ConfigValue) else None)
        elif key.keytype == KeyType.MODE:
            self._set(self.modes, key.subject, value.mode if isinstance(value, ModeValue) else None)
        elif isinstance(value, DeleteSubjectValue):
            for each in self.all_versions(value.subject):
                if each.version <= value.version:
                    self._replace(each, deleted=True)
        elif isinstance(value, ClearSubjectValue):
            for name in list(self.in_scope(value.subject, deleted=True)):
                for each in self.all_versions(name, deleted=True):
                    if each.deleted:
                        self._remove(name, each.version)
        elif key.keytype == KeyType.CONTEXT:
            if isinstance(value, ContextValue):
                self.contexts[value.context] = None
            else:
                self.contexts.pop(key.context, None)

    def _put(self, subject: str, version: int, value: SchemaValue) -> None:
        name = context_of(subject) if subject[:1] == ":" else DEFAULT_CONTEXT
        context = self._by_context.get(name)
        if context is None:
            context = self._by_context[name] = _Context()
        holders = context.ids.get(value.id)
        if holders:
            holder, n = next(iter(holders))
            if self.versions[holder][n].schema != value.schema:
                self.conflicts += 1
                return
        versions = self.versions.get(subject)
        if versions is None:
            versions = self.versions[subject] = {}
        old = versions.get(version)
        if old is not None:
            self._unlink(old)
        if value.subject != subject or value.version != version:
            value = SchemaValue(
                subject,
                version,
                value.id,
                value.schema,
                value.schema_type,
                value.references,
                value.metadata,
                value.rule_set,
                value.deleted,
            )
        versions[version] = value
        if holders:
            holders[subject, version] = None
        else:
            context.ids[value.id] = {(subject, version): None}
        context.undigested.append(value)
        if value.id > context.max_id:
            context.max_id = value.id
        for each in value.references or ():
            self._referrers.setdefault((qualify(each.subject, subject), each.version), {})[(subject, version)] = None
        self.schemas += old is None
        self._names.clear()

    def _remove(self, subject: str, version: int) -> None:
        old = self.versions.get(subject, {}).pop(version, None)
        if old is None:
            return
        self._unlink(old)
        if not self.versions[subject]:
            del self.versions[subject]
        self.schemas -= 1
        self._names.clear()

    def _unlink(self, old: SchemaValue) -> None:
        """Take a version out of the indexes; with its last holder an id is gone."""
        place = (old.subject, old.version)
        context = self._by_context[context_of(old.subject)]
        holders = context.ids.get(old.id, {})
        holders.pop(place, None)
        if not holders:
            context.ids.pop(old.id, None)
            digests, digest = context.digests(), _digest(old)
            if digests.get(digest) == old.id:
                del digests[digest]
        for each in references_of(old):
            target = (qualify(each.subject, old.subject), each.version)
            self._referrers.get(target, {}).pop(place, None)
            if not self._referrers.get(target):
                self._referrers.pop(target, None)

    def _replace(self, old: SchemaValue, *, deleted: bool) -> None:
        changed = SchemaValue(
            old.subject, old.version, old.id, old.schema, old.schema_type, old.references, old.metadata, old.rule_set, deleted
        )
        self.versions[old.subject][old.version] = changed
        self._names.clear()

    def _set(self, settings: dict[str | None, T], subject: str | None, value: T | None) -> None:
        if value is None:
            settings.pop(subject, None)
        else:
            settings[subject] = value


def merge_configs(chain: list[ConfigValue]) -> ConfigValue:
    """Return one configuration of several; what comes first counts first."""
    merged: dict[str, object] = {}
    for each in reversed(chain):
        merged.update({name: found for name in ConfigValue.__struct_fields__ if (found := getattr(each, name)) is not None})
    return ConfigValue(**merged)  # type: ignore[arg-type]
