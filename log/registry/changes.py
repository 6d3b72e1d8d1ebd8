"""What a request would write: each function takes the state and a request and returns the answer and the records. Pure; changes
nothing.

The records of one change are written together or not at all. The rules are those of Confluent's registry: deleting is soft first,
then permanent; what is referred to stays; modes say who may write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from .compatibility import DEFAULT_LEVEL, Difference, Earlier, check
from .errors import Fault, RegistryError
from .loader import Loader
from .lookup import by_digest, exact, fill, id_of, is_same
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
    references_of,
    schema_key,
)
from .requests import LATEST, SchemaRequest
from .schemas import ParsedSchema
from .state import READWRITE, State
from .subjects import DEFAULT_CONTEXT, context_of, prefix_of

IMPORTING = ("IMPORT", "FORWARD")
READ_ONLY = ("READONLY", "READONLY_OVERRIDE")


@dataclass(frozen=True, slots=True)
class Change:
    """What is answered once `entries` are in the log; without entries at once."""

    answer: Any
    entries: tuple[Entry, ...] = ()


def register(state: State, loader: Loader, subject: str, request: SchemaRequest, *, normalize: bool, force: bool) -> Change:
    """Register a schema: the version that already holds it, or a new one. The answer is a `SchemaValue`.

    Raises:
        RegistryError: the mode forbids it, the schema is invalid, or incompatible with earlier versions.
    """
    _check_register_mode(state, subject, request)
    config, mode = state.config_in_scope(subject), state.mode_in_scope(subject)
    is_import = mode in IMPORTING
    versions = state.all_versions(subject, deleted=True)
    live = [each for each in versions if not each.deleted]
    next_version = versions[-1].version + 1 if versions else 1
    if not is_import:
        request = _fill_from_previous(config, request, live[-1] if live else None, next_version)
    if not (request.schema or "").strip():
        raise RegistryError(Fault.INVALID_SCHEMA, "Empty schema")
    wanted_id = request.id if request.id is not None and request.id >= 0 and mode == "IMPORT" else None
    is_new = wanted_id is None and config.validate_new_schemas is not False and not is_import
    parsed = loader.request(subject, request, is_new=is_new, normalize=normalize and not is_import)
    known_id = id_of(state, subject, parsed, request)
    if known_id is not None and wanted_id in (None, known_id):
        found = by_digest(state, subject, parsed, request)
        if not request.version and found is not None and not found.deleted:
            return Change(found)
        wanted_id = known_id
    if not request.version:
        for each in reversed(live):
            if wanted_id in (None, each.id) and is_same(state, loader, parsed, request, each):
                return Change(each)
    if not is_import and not force:
        messages = compatibility(state, loader, subject, parsed, request, live)
        if messages:
            raise RegistryError(Fault.INCOMPATIBLE, subject, ", ".join(messages))
    return _new_version(
        state, subject, parsed, request, versions, next_version, wanted_id,
        is_import=is_import, max_versions=loader.limits.versions,
    )  # fmt: skip


def compatibility(
    state: State, loader: Loader, subject: str, parsed: ParsedSchema, request: SchemaRequest, earlier: list[SchemaValue]
) -> list[str]:
    """Return why a schema must not follow `earlier` versions under the subject's configuration; [] when it may."""
    config = state.config_in_scope(subject)
    level = config.compatibility_level or DEFAULT_LEVEL
    messages: list[str] = []
    if config.validate_fields:
        messages += _reserved_fields(parsed, request, earlier[-1] if earlier else None)
    group = config.compatibility_group
    if group is not None:
        value = _property(request.metadata, group)
        earlier = [each for each in earlier if _property(each.metadata, group) == value]
    loads = [Earlier(each.version, lambda each=each: loader.load(each)) for each in earlier]  # type: ignore[misc]
    messages += check(level, parsed, loads, policy=config.compatibility_policy or "STRICT")
    if not messages:
        return []
    return [*messages, f"{{validateFields: '{str(bool(config.validate_fields)).lower()}', compatibility: '{level}'}}"]


def check_against(
    state: State, loader: Loader, subject: str, request: SchemaRequest, earlier: list[SchemaValue], *, normalize: bool
) -> list[str]:
    """Return why the schema of a request must not follow `earlier` versions; nothing is registered."""
    if not (request.schema or "").strip():
        raise RegistryError(Fault.INVALID_SCHEMA, "Empty schema")
    config = state.config_in_scope(subject)
    parsed = loader.request(subject, request, is_new=config.validate_new_schemas is not False, normalize=normalize)
    return compatibility(state, loader, subject, parsed, request, earlier)


def existing(state: State, loader: Loader, subject: str, request: SchemaRequest, *, normalize: bool) -> SchemaValue | None:
    """Return the version that registering would give back without writing anything; None when it takes a writer to know."""
    config = state.config_in_scope(subject)
    has_own = any((config.default_metadata, config.override_metadata, config.default_rule_set, config.override_rule_set))
    if has_own or request.version or request.id is not None or not (request.schema or "").strip():
        return None
    parsed = loader.request(subject, request, is_new=False, normalize=normalize)
    return exact(state, loader, subject, parsed, request, deleted=False)


def _check_register_mode(state: State, subject: str, request: SchemaRequest) -> None:
    mode = state.mode_in_scope(subject)
    place = f"Subject {subject} in context {prefix_of(context_of(subject))}"
    if mode in READ_ONLY:
        raise RegistryError(Fault.NOT_PERMITTED, f"{place} is in read-only mode")
    if request.id is not None and request.id >= 0:
        if mode not in IMPORTING:
            raise RegistryError(Fault.NOT_PERMITTED, f"{place} is not in import mode")
    elif mode != READWRITE:
        raise RegistryError(Fault.NOT_PERMITTED, f"{place} is not in read-write mode")


def _fill_from_previous(
    config: ConfigValue, request: SchemaRequest, previous: SchemaValue | None, next_version: int
) -> SchemaRequest:
    if not (request.schema or "").strip() and previous is not None:
        request = msgspec.structs.replace(
            request, schema=previous.schema, schema_type=previous.schema_type, references=previous.references
        )
    return fill(config, request, previous, new_version=next_version)


def _new_version(
    state: State,
    subject: str,
    parsed: ParsedSchema,
    request: SchemaRequest,
    versions: list[SchemaValue],
    next_version: int,
    id_: int | None,
    *,
    is_import: bool,
    max_versions: int,
) -> Change:
    context = context_of(subject)
    version = request.version if request.version and request.version > 0 else next_version
    if version != next_version and not is_import:
        raise RegistryError(
            Fault.INVALID_SCHEMA, f"Version is not one more than previous version: expected {next_version}, found {version}"
        )
    if len(versions) >= max_versions:
        raise RegistryError(Fault.NOT_PERMITTED, f"a subject has at most {max_versions} versions; delete old ones permanently")
    if id_ is None:
        id_ = state.max_id(context) + 1
    made = SchemaValue(
        subject,
        version,
        id_,
        parsed.text,
        None if parsed.type == "AVRO" else parsed.type,
        parsed.references or None,
        request.metadata,
        request.rule_set,
    )
    _check_id(state, context, made)
    entries = []
    if context != DEFAULT_CONTEXT and context not in state.contexts:
        entries.append(Entry(Key(KeyType.CONTEXT, context=context), ContextValue(context)))
    for old in versions:
        is_superseded = old.deleted and old.id == id_ and old.version < version
        if is_superseded and not state.referrers(subject, old.version, deleted=True):
            entries.append(Entry(schema_key(subject, old.version)))
    entries.append(Entry(schema_key(subject, version), made))
    return Change(made, tuple(entries))


def _check_id(state: State, context: str, made: SchemaValue) -> None:
    for name, version in state.ids_of(context, made.id)[:1]:
        held = state.versions[name][version]
        same = (held.schema, held.type, references_of(held), held.metadata, held.rule_set)
        if same != (made.schema, made.type, references_of(made), made.metadata, made.rule_set):
            raise RegistryError(
                Fault.NOT_PERMITTED, f"Overwrite new schema with id {made.id} in context {prefix_of(context)} is not permitted."
            )


def _property(metadata: Any, name: str) -> str | None:
    return (metadata.properties or {}).get(name) if metadata is not None else None


def _reserved_fields(parsed: ParsedSchema, request: SchemaRequest, previous: SchemaValue | None) -> list[str]:
    def reserved(metadata: Any) -> set[str]:
        return {part.strip() for part in (_property(metadata, "confluent:reserved") or "").split(",") if part.strip()}

    new = reserved(request.metadata)
    lost = reserved(previous.metadata) - new if previous is not None else set()
    removed = "The new schema has reserved field {} removed from its metadata which is present in the old schema's metadata."
    taken = "The new schema has field that conflicts with the reserved field {}."
    return [
        *(Difference("RESERVED_FIELD_REMOVED", name, removed).told(name, "") for name in sorted(lost)),
        *(Difference("FIELD_CONFLICTS_WITH_RESERVED_FIELD", name, taken).told(name, "") for name in sorted(new & parsed.fields)),
    ]


# deleting


def delete_version(state: State, subject: str, version: int, *, permanent: bool) -> Change:
    """Delete a version; the answer is its number."""
    found = state.latest(subject) if version == LATEST else state.version(subject, version, deleted=True)
    if found is None:
        if not state.has_subject(subject, deleted=True):
            raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
        raise RegistryError(Fault.VERSION_NOT_FOUND, version)
    _check_writable(state, subject)
    if found.deleted and not permanent:
        raise RegistryError(Fault.VERSION_SOFT_DELETED, subject, found.version)
    _check_unreferenced(state, subject, found.version, permanent=permanent, but=())
    if not permanent:
        gone = msgspec.structs.replace(found, deleted=True)
        return Change(found.version, (Entry(schema_key(subject, found.version), gone),))
    if not found.deleted:
        raise RegistryError(Fault.VERSION_NOT_SOFT_DELETED, subject, found.version)
    entries = [Entry(schema_key(subject, found.version))]
    if len(state.versions[subject]) == 1:
        entries += _forget_settings(state, subject)
    return Change(found.version, tuple(entries))


def delete_subject(state: State, subject: str, *, permanent: bool) -> Change:
    """Delete all versions of a subject; the answer is their numbers."""
    if not state.has_subject(subject, deleted=True):
        raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
    if not permanent and not state.has_subject(subject, deleted=False):
        raise RegistryError(Fault.SUBJECT_SOFT_DELETED, subject)
    _check_writable(state, subject)
    versions = state.all_versions(subject, deleted=permanent)
    for each in versions:
        _check_unreferenced(state, subject, each.version, permanent=permanent, but=(subject,))
        if permanent and not each.deleted:
            raise RegistryError(Fault.SUBJECT_NOT_SOFT_DELETED, subject)
    numbers = [each.version for each in versions]
    if not permanent:
        value = DeleteSubjectValue(subject, numbers[-1])
        return Change(numbers, (Entry(Key(KeyType.DELETE_SUBJECT, subject), value),))
    entries = [Entry(schema_key(subject, n)) for n in reversed(numbers)]
    return Change(numbers, (*entries, *_forget_settings(state, subject)))


def delete_context(state: State, context: str) -> Change:
    """Delete a context that has no schemas left."""
    if state.has_subject(prefix_of(context) or "", deleted=True):
        raise RegistryError(Fault.CONTEXT_NOT_EMPTY, context)
    return Change(None, (Entry(Key(KeyType.CONTEXT, context=context)),))


def _check_writable(state: State, subject: str | None) -> None:
    if state.mode_in_scope(subject) in READ_ONLY:
        context = prefix_of(context_of(subject or ""))
        raise RegistryError(Fault.NOT_PERMITTED, f"Subject {subject} in context {context} is in read-only mode")


def _check_unreferenced(state: State, subject: str, version: int, *, permanent: bool, but: tuple[str, ...]) -> None:
    if any(each.subject not in but for each in state.referrers(subject, version, deleted=permanent)):
        raise RegistryError(Fault.REFERENCE_EXISTS, f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}")


def _forget_settings(state: State, subject: str) -> list[Entry]:
    entries = []
    if state.mode(subject) is not None:
        entries.append(Entry(Key(KeyType.MODE, subject)))
    if state.config(subject) is not None:
        entries.append(Entry(Key(KeyType.CONFIG, subject)))
    return entries


# settings


def set_config(state: State, subject: str | None, fields: dict[str, object]) -> Change:
    """Set fields of a configuration; the answer is the whole of it."""
    _check_writable(state, subject)
    old = state.config(subject) or ConfigValue()
    new = msgspec.structs.replace(old, subject=subject, **fields)
    return Change(new, (Entry(Key(KeyType.CONFIG, subject), new),))


def delete_config(state: State, subject: str | None) -> Change:
    """Take a configuration away; the answer is what it was."""
    old = state.config(subject)
    if old is None and subject is not None:
        raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
    _check_writable(state, subject)
    return Change(old or ConfigValue(), (Entry(Key(KeyType.CONFIG, subject)),))


def set_mode(state: State, subject: str | None, mode: str | None, *, force: bool) -> Change:
    """Set a mode; into IMPORT only where no schemas are, unless forced. The answer is the mode."""
    entries: list[Entry] = []
    if mode == "FORWARD" and context_of(subject or "") != ".__GLOBAL":
        raise RegistryError(Fault.INVALID_MODE, "Forward mode only supported on global level")
    if mode == "IMPORT" and state.mode_in_scope(subject) != "IMPORT" and not force:
        if any(True for _ in state.in_scope(subject, deleted=False)):
            raise RegistryError(Fault.NOT_PERMITTED, "Cannot import since found existing subjects")
        for name in state.in_scope(subject, deleted=True):
            for each in state.all_versions(name, deleted=True):
                _check_unreferenced(state, name, each.version, permanent=True, but=())
                entries.append(Entry(schema_key(name, each.version)))
        entries.append(Entry(Key(KeyType.CLEAR_SUBJECT, subject), ClearSubjectValue(subject)))
    value = None if mode is None else ModeValue(subject, mode)
    return Change(mode, (*entries, Entry(Key(KeyType.MODE, subject), value)))


def delete_mode(state: State, subject: str | None, *, recursive: bool) -> Change:
    """Take a mode away, with `recursive` those of all subjects of the context too; the answer is what it was."""
    old = state.mode(subject)
    if old is None and not recursive and subject is not None:
        raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
    entries = [Entry(Key(KeyType.MODE, subject))]
    if recursive:
        context = context_of(subject or "")
        inside = [name for name in state.modes if name is not None and name != subject and context_of(name) == context]
        entries += [Entry(Key(KeyType.MODE, name)) for name in inside]
    return Change(old or (None if recursive else READWRITE), tuple(entries))
