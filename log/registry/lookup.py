"""Which version of a subject a given schema is: by its digest, else by what it means. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .guid import digest_of
from .loader import VERSION_PROPERTY, Loader, same_identity
from .records import ConfigValue, Metadata, Reference, Rule, RuleSet, SchemaValue, references_of
from .requests import LATEST, SchemaRequest
from .schemas import ParsedSchema, language
from .state import State
from .subjects import context_of, parse_subject, prefix_of, qualify


def find(
    state: State, loader: Loader, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
) -> SchemaValue | None:
    """Return the version of a subject that holds a schema, as registering would find it; None when there is none.

    In the default context, what no subject of that name has is looked for in the other contexts.
    """
    found = _under(state, loader, subject, request, normalize=normalize, deleted=deleted)
    wanted = parse_subject(subject)
    if found is not None or wanted.context != ".":
        return found
    for context in state.all_contexts()[1:]:
        name = prefix_of(context) + wanted.name
        if name in state.versions:
            found = _under(state, loader, name, request, normalize=normalize, deleted=deleted)
            if found is not None:
                return found
    return None


def _under(
    state: State, loader: Loader, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
) -> SchemaValue | None:
    if not (request.schema or "").strip():
        return None
    parsed = loader.request(subject, request, is_new=False, normalize=normalize)
    found = exact(state, loader, subject, parsed, request, deleted=deleted)
    if found is not None:
        return found
    latest = state.latest(subject)
    if latest is None:
        return None
    filled = fill(state.config_in_scope(subject), request, latest, new_version=None)
    if (filled.metadata, filled.rule_set) == (request.metadata, request.rule_set):
        return None
    return exact(state, loader, subject, parsed, filled, deleted=deleted)


def exact(
    state: State, loader: Loader, subject: str, parsed: ParsedSchema, request: SchemaRequest, *, deleted: bool
) -> SchemaValue | None:
    """Return the version that holds this schema with these references, metadata and rules."""
    found = by_digest(state, subject, parsed, request)
    if found is not None and (deleted or not found.deleted):
        return found
    for each in reversed(state.all_versions(subject, deleted=deleted)):
        if is_same(state, loader, parsed, request, each):
            return each
    return None


def by_digest(state: State, subject: str, parsed: ParsedSchema, request: SchemaRequest) -> SchemaValue | None:
    """Return the newest version of a subject with the schema's digest, deleted or not."""
    id_ = id_of(state, subject, parsed, request)
    versions = [] if id_ is None else [n for name, n in state.ids_of(context_of(subject), id_) if name == subject]
    return state.version(subject, max(versions), deleted=True) if versions else None


def id_of(state: State, subject: str, parsed: ParsedSchema, request: SchemaRequest) -> int | None:
    """Return the id that the schema has in the subject's context."""
    digest = digest_of(parsed.text, parsed.references, request.metadata, request.rule_set)
    return state.id_by_digest(context_of(subject), digest)


def is_same(state: State, loader: Loader, parsed: ParsedSchema, request: SchemaRequest, value: SchemaValue) -> bool:
    """Return whether a version holds the same schema: a reference to the latest version, or a type written out, does not
    matter."""
    if parsed.type != value.type:
        return False
    if not same_identity((request.metadata, request.rule_set), (value.metadata, value.rule_set), but_version=True):
        return False
    own, its = parsed.references, references_of(value)
    if parsed.text == value.schema and _pinned(state, own, value.subject) == _pinned(state, its, value.subject):
        return True
    if own or not its:
        return False
    spoken = language(parsed.type)
    return spoken.formatted(parsed.tree, "resolved") == spoken.formatted(loader.load(value).tree, "resolved")


def _pinned(state: State, references: Sequence[Reference], subject: str) -> list[tuple[str, str, int]]:
    """Return references with the latest version in place of -1."""
    made = []
    for each in references:
        name = qualify(each.subject, subject)
        latest = state.latest(name) if each.version == LATEST else None
        made.append((each.name, name, latest.version if latest else each.version))
    return made


def fill(config: ConfigValue, request: SchemaRequest, previous: SchemaValue | None, *, new_version: int | None) -> SchemaRequest:
    """Return the request with the metadata and rules that it will have: its own or the previous version's, between the
    configuration's defaults and overrides; with the property `confluent:version` where that is asked for."""
    metadata = request.metadata if request.metadata is not None else previous.metadata if previous else None
    rule_set = request.rule_set if request.rule_set is not None else previous.rule_set if previous else None
    merged = _merge_metadata(_merge_metadata(config.default_metadata, metadata), config.override_metadata)
    rules = _merge_rules(_merge_rules(config.default_rule_set, rule_set), config.override_rule_set)
    if new_version is not None:
        has_version = merged is not None and VERSION_PROPERTY in (merged.properties or {})
        if (request.version or 0) != 0 or has_version:
            stamp = Metadata({VERSION_PROPERTY: str(new_version)})
            merged = _merge_metadata(merged, stamp)
    return msgspec.structs.replace(request, metadata=merged, rule_set=rules)


def _merge_metadata(old: Metadata | None, new: Metadata | None) -> Metadata | None:
    if old is None or new is None:
        return new if old is None else old
    sensitive = dict.fromkeys((*(old.sensitive or ()), *(new.sensitive or ())))
    return Metadata(
        {**(old.properties or {}), **(new.properties or {})} or None,
        tuple(sensitive) or None,
        {**(old.tags or {}), **(new.tags or {})} or None,
    )


def _merge_rules(old: RuleSet | None, new: RuleSet | None) -> RuleSet | None:
    if old is None or new is None:
        return new if old is None else old
    return RuleSet(
        _merge_rule_list(old.migration_rules, new.migration_rules),
        _merge_rule_list(old.domain_rules, new.domain_rules),
        _merge_rule_list(old.encoding_rules, new.encoding_rules),
        new.enable_at or old.enable_at,
    )


def _merge_rule_list(old: tuple[Rule, ...] | None, new: tuple[Rule, ...] | None) -> tuple[Rule, ...] | None:
    """Return both lists; a new rule takes the place of an old one of its name."""
    if not old or not new:
        return new or old
    names = {each.name for each in new}
    return (*(each for each in old if each.name not in names), *new)
