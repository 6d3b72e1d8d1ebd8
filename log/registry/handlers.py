"""What each path of the interface does: reads answer from the state, changes go through the writer.

A handler takes the service and a request and returns what is sent as JSON (`Raw` as it is); some are coroutines. Confluent's
reference of the interface names the paths, parameters and codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

import msgspec

from . import changes, lookup
from .changes import Change
from .compatibility import DEFAULT_LEVEL
from .errors import Fault, RegistryError
from .guid import digest_from
from .records import ConfigValue, SchemaValue
from .requests import LATEST, SchemaRequest, config_request, mode_request, parse_version, schema_request
from .routing import Request, Router
from .schemas import TYPES, language
from .service import Service
from .state import READWRITE
from .subjects import ANY_CONTEXT, DEFAULT_CONTEXT, context_of, is_default_context, is_valid, normalize, prefix_of, qualify
from .views import config_view, guid_of_value, schema_view, text_view

T = TypeVar("T")
PAGE_SCHEMAS = 1000
_ASSOCIATIONS = "this registry does not keep associations of schemas with topics"
_EXPORTERS = "this registry has no exporters; logflume's connectors or another registry's import mode can copy schemas"
_TAGS = "this registry does not write tags into schemas; register a version with the tags in its text or its metadata"


@dataclass(frozen=True, slots=True)
class Raw:
    """An answer that is sent as it is."""

    body: bytes
    content_type: str = "application/json"


# schemas by id


def schema_by_id(service: Service, request: Request) -> Any:
    found = _by_id(service, request)
    view = text_view(found, text=_form(service, found, request.text("format")))
    view.pop("deleted", None)
    _qualify_references(view, found, request)
    if request.flag("fetchMaxId"):
        view["maxId"] = service.state.max_id(context_of(found.subject))
    return view


def schema_text_by_id(service: Service, request: Request) -> Any:
    found = _by_id(service, request)
    return Raw((_form(service, found, request.text("format")) or found.schema).encode())


def subjects_of_id(service: Service, request: Request) -> Any:
    return _page(list(dict.fromkeys(each.subject for each in _holders(service, request))), request)


def versions_of_id(service: Service, request: Request) -> Any:
    return _page([{"subject": each.subject, "version": each.version} for each in _holders(service, request)], request)


def schema_by_guid(service: Service, request: Request) -> Any:
    digest = digest_from(request.arguments[0])
    for context in service.state.all_contexts() if digest else ():
        id_ = service.state.id_by_digest(context, digest or b"")
        found = None if id_ is None else service.state.by_id(id_, prefix_of(context))
        if found is not None and _is_readable(service, request, found):
            view = text_view(found, text=_form(service, found, request.text("format")))
            view.pop("deleted", None)
            return view
    raise RegistryError(Fault.SCHEMA_NOT_FOUND, f"{request.arguments[0][:100]} ")


def ids_of_guid(service: Service, request: Request) -> Any:
    digest = digest_from(request.arguments[0]) or b""
    ids = ((context, service.state.id_by_digest(context, digest)) for context in service.state.all_contexts())
    found = [{"context": context, "id": id_} for context, id_ in ids if id_ is not None]
    if not found:
        raise RegistryError(Fault.SCHEMA_NOT_FOUND, f"{request.arguments[0][:100]} ")
    return found


def schema_types(service: Service, request: Request) -> Any:
    return list(TYPES)


def all_schemas(service: Service, request: Request) -> Any:
    state, deleted = service.state, request.flag("deleted")
    names = filter(request.rights.may_read, state.with_prefix(request.text("subjectPrefix", ":*:"), deleted=deleted))
    first, limit = max(0, request.number("offset", 0)), request.number("limit", -1)
    wanted = first + (min(limit, PAGE_SCHEMAS) if limit >= 0 else PAGE_SCHEMAS)
    rule_type, found = request.text("ruleType"), []
    for name in names:
        versions = state.all_versions(name, deleted=deleted)
        among = versions[-1:] if request.flag("latestOnly") else versions
        found += [each for each in among if not rule_type or _has_rule(each, rule_type)]
        if len(found) >= wanted:
            break
    return [schema_view(each) for each in found[first:wanted]]


# subjects


def subjects(service: Service, request: Request) -> Any:
    prefix = request.text("subjectPrefix", f":{ANY_CONTEXT}:")
    names: Sequence[str]
    if request.flag("deletedOnly"):
        live = set(service.state.with_prefix(prefix, deleted=False))
        names = [name for name in service.state.with_prefix(prefix, deleted=True) if name not in live]
    else:
        names = service.state.with_prefix(prefix, deleted=request.flag("deleted"))
    return _page(names if request.rights.is_admin else [name for name in names if request.rights.may_read(name)], request)


def versions(service: Service, request: Request) -> Any:
    subject, state = _subject(request), service.state
    deleted, only = request.flag("deleted"), request.flag("deletedOnly")
    if not state.has_subject(subject, deleted=deleted or only):
        raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
    if request.flag("deletedAsNegative"):
        found = [-each.version if each.deleted else each.version for each in state.all_versions(subject, deleted=True)]
    else:
        found = [each.version for each in state.all_versions(subject, deleted=deleted or only) if each.deleted or not only]
    return _page(found, request)


def version(service: Service, request: Request) -> Any:
    found = _version(service, request)
    view = schema_view(found, text=_form(service, found, request.text("format")))
    _qualify_references(view, found, request)
    return view


def version_text(service: Service, request: Request) -> Any:
    found = _version(service, request)
    return Raw((_form(service, found, request.text("format")) or found.schema).encode())


def referenced_by(service: Service, request: Request) -> Any:
    found = _version(service, request, deleted=True)
    users = service.state.referrers(found.subject, found.version, deleted=request.flag("deleted"))
    return _page(list(dict.fromkeys(each.id for each in users)), request)


def latest_with_metadata(service: Service, request: Request) -> Any:
    subject = _subject(request)
    wanted = set(zip(request.query.get("key", []), request.query.get("value", []), strict=False))
    for each in reversed(service.state.all_versions(subject, deleted=request.flag("deleted"))):
        if each.metadata is not None and wanted <= (each.metadata.properties or {}).items():
            return schema_view(each, text=_form(service, each, request.text("format")))
    return _not_found(service, subject, deleted=request.flag("deleted"))


async def lookup_schema(service: Service, request: Request) -> Any:
    subject, asked, deleted = _subject(request), schema_request(request.body), request.flag("deleted")
    normalized = _normalizes(service, request, subject)
    found = await service.compute(
        lambda: lookup.find(service.state, service.loader, subject, asked, normalize=normalized, deleted=deleted),
        size=_size(asked),
    )
    if found is None:
        return _not_found(service, subject, deleted=deleted)
    return schema_view(found, text=_form(service, found, request.text("format")))


async def register(service: Service, request: Request) -> Any:
    subject, asked = _subject(request, is_new=True), schema_request(request.body)
    normalized, force = _normalizes(service, request, subject), request.flag("force")
    state, loader = service.state, service.loader
    known = None
    if subject in state.versions:
        known = await service.compute(
            lambda: changes.existing(state, loader, subject, asked, normalize=normalized), size=_size(asked)
        )
    found = known or await service.change(
        lambda: changes.register(state, loader, subject, asked, normalize=normalized, force=force),
        size=_heavy(service, subject, asked),
    )
    view = {"id": found.id, "version": found.version, "guid": guid_of_value(found)}
    is_as_sent = (asked.metadata, asked.rule_set) == (found.metadata, found.rule_set) and (asked.schema or "").strip()
    if is_as_sent and not request.text("format"):
        return view  # the whole schema would make clients keep it in another form than the one they sent
    return {**view, **text_view(found, text=_form(service, found, request.text("format")))}


async def delete_subject(service: Service, request: Request) -> Any:
    subject, permanent = _subject(request), request.flag("permanent")
    return await service.change(lambda: changes.delete_subject(service.state, subject, permanent=permanent))


async def delete_version(service: Service, request: Request) -> Any:
    subject, number, permanent = _subject(request), parse_version(request.arguments[1]), request.flag("permanent")
    return await service.change(lambda: changes.delete_version(service.state, subject, number, permanent=permanent))


# compatibility


async def check_version(service: Service, request: Request) -> Any:
    subject, number = _subject(request), parse_version(request.arguments[1])
    found = service.state.latest(subject) if number == LATEST else service.state.version(subject, number)
    if found is None and number != LATEST:
        return _not_found(service, subject, number=number, deleted=False)
    return await _check(service, request, subject, [] if found is None else [found])


async def check_all(service: Service, request: Request) -> Any:
    subject = _subject(request)
    return await _check(service, request, subject, service.state.all_versions(subject))


async def _check(service: Service, request: Request, subject: str, earlier: list[SchemaValue]) -> Any:
    asked, is_verbose = schema_request(request.body), request.flag("verbose")
    normalized = _normalizes(service, request, subject)
    try:
        messages = await service.compute(
            lambda: changes.check_against(service.state, service.loader, subject, asked, earlier, normalize=normalized),
            size=_size(asked) + sum(len(each.schema) for each in earlier),
        )
    except RegistryError as error:
        if not is_verbose or error.fault is not Fault.INVALID_SCHEMA:
            raise
        messages = [str(error)]
    return {"is_compatible": not messages, **({"messages": messages} if is_verbose else {})}


# settings


def config(service: Service, request: Request) -> Any:
    subject, state = _scope(request), service.state
    found = state.config_in_scope(subject) if request.flag("defaultToGlobal") else state.config(subject)
    if found is None and subject is not None and context_of(subject) != ".__GLOBAL":
        raise RegistryError(Fault.CONFIG_NOT_FOUND, subject)
    found = found or ConfigValue()
    if found.compatibility_level is None:
        found = msgspec.structs.replace(found, compatibility_level=DEFAULT_LEVEL)
    return config_view(found)


async def set_config(service: Service, request: Request) -> Any:
    subject, fields = _scope(request, is_new=True), config_request(request.body)
    found = await service.change(lambda: changes.set_config(service.state, subject, fields))
    return config_view(found, level_name="compatibility")


async def delete_config(service: Service, request: Request) -> Any:
    subject = _scope(request)
    found = await service.change(lambda: changes.delete_config(service.state, subject))
    if found.compatibility_level is None:
        found = msgspec.structs.replace(found, compatibility_level=DEFAULT_LEVEL)
    return config_view(found)


def mode(service: Service, request: Request) -> Any:
    subject, state = _scope(request), service.state
    found = state.mode_in_scope(subject) if request.flag("defaultToGlobal") else state.mode(subject)
    if found is None and subject is not None and context_of(subject) != ".__GLOBAL":
        raise RegistryError(Fault.MODE_NOT_FOUND, subject)
    return {"mode": found or READWRITE}


async def set_mode(service: Service, request: Request) -> Any:
    subject, wanted, force = _scope(request, is_new=True), mode_request(request.body), request.flag("force")
    found = await service.change(lambda: changes.set_mode(service.state, subject, wanted, force=force))
    return {"mode": found}


async def delete_mode(service: Service, request: Request) -> Any:
    subject, recursive = _scope(request), request.flag("recursive")
    found = await service.change(lambda: changes.delete_mode(service.state, subject, recursive=recursive))
    return {} if found is None else {"mode": found}


# contexts and the server


def contexts(service: Service, request: Request) -> Any:
    return _page(service.state.all_contexts(), request)


async def delete_context(service: Service, request: Request) -> Any:
    context = context_of(normalize(f":.{request.arguments[0].strip(':').lstrip('.')}:"))
    if context == DEFAULT_CONTEXT:
        raise RegistryError(Fault.NOT_PERMITTED, "the default context cannot be deleted")
    await service.change(lambda: changes.delete_context(service.state, context))
    return Raw(b"")


def root(service: Service, request: Request) -> Any:
    return {}


def server_id(service: Service, request: Request) -> Any:
    scope = {"path": [], "clusters": {"schema-registry-cluster": service.settings.group_id}}
    return {"scope": scope, "id": ""}


def server_version(service: Service, request: Request) -> Any:
    return {"version": metadata.version("logflume"), "commitId": "logflume"}


def server_deployment(service: Service, request: Request) -> Any:
    return {"attributes": []}


def _refuse(why: str) -> Callable[[Service, Request], Any]:
    def refuse(service: Service, request: Request) -> Any:
        raise RegistryError(Fault.NOT_OFFERED, why)

    return refuse


ROUTES: tuple[tuple[str, str, Callable[[Service, Request], Any]], ...] = (
    ("GET", "/", root),
    ("POST", "/", root),
    ("GET", "/schemas", all_schemas),
    ("GET", "/schemas/types", schema_types),
    ("GET", "/schemas/ids/*", schema_by_id),
    ("GET", "/schemas/ids/*/schema", schema_text_by_id),
    ("GET", "/schemas/ids/*/subjects", subjects_of_id),
    ("GET", "/schemas/ids/*/versions", versions_of_id),
    ("GET", "/schemas/guids/*", schema_by_guid),
    ("GET", "/schemas/guids/*/ids", ids_of_guid),
    ("GET", "/subjects", subjects),
    ("POST", "/subjects/*", lookup_schema),
    ("DELETE", "/subjects/*", delete_subject),
    ("GET", "/subjects/*/metadata", latest_with_metadata),
    ("GET", "/subjects/*/versions", versions),
    ("POST", "/subjects/*/versions", register),
    ("GET", "/subjects/*/versions/*", version),
    ("DELETE", "/subjects/*/versions/*", delete_version),
    ("GET", "/subjects/*/versions/*/schema", version_text),
    ("GET", "/subjects/*/versions/*/referencedby", referenced_by),
    ("POST", "/subjects/*/versions/*/tags", _refuse(_TAGS)),
    ("POST", "/compatibility/subjects/*/versions", check_all),
    ("POST", "/compatibility/subjects/*/versions/*", check_version),
    ("GET", "/config", config),
    ("PUT", "/config", set_config),
    ("DELETE", "/config", delete_config),
    ("GET", "/config/*", config),
    ("PUT", "/config/*", set_config),
    ("DELETE", "/config/*", delete_config),
    ("GET", "/mode", mode),
    ("PUT", "/mode", set_mode),
    ("DELETE", "/mode", delete_mode),
    ("GET", "/mode/*", mode),
    ("PUT", "/mode/*", set_mode),
    ("DELETE", "/mode/*", delete_mode),
    ("GET", "/contexts", contexts),
    ("DELETE", "/contexts/*", delete_context),
    ("GET", "/v1/metadata/id", server_id),
    ("GET", "/v1/metadata/version", server_version),
    ("GET", "/v1/metadata/deployment", server_deployment),
    *((method, "/associations", _refuse(_ASSOCIATIONS)) for method in ("GET", "POST", "PUT", "DELETE")),
    *((method, "/exporters", _refuse(_EXPORTERS)) for method in ("GET", "POST")),
    *((method, "/exporters/*", _refuse(_EXPORTERS)) for method in ("GET", "PUT", "DELETE")),
    *((method, f"/exporters/*/{part}", _refuse(_EXPORTERS)) for method in ("GET", "PUT") for part in ("status", "config")),
    *(("PUT", f"/exporters/*/{part}", _refuse(_EXPORTERS)) for part in ("pause", "resume", "reset")),
)


def make_router() -> Router:
    """Return the router of the whole interface."""
    router = Router()
    for method, pattern, handler in ROUTES:
        router.add(method, pattern, handler)
    return router


# what handlers share


def _subject(request: Request, *, is_new: bool = False) -> str:
    text = request.arguments[0]
    if is_new and not is_valid(text, is_setting=False):
        raise RegistryError(Fault.INVALID_SUBJECT, text[:200])
    return normalize(text)


def _scope(request: Request, *, is_new: bool = False) -> str | None:
    """Return the subject or context of a setting; None is the top level."""
    if not request.arguments or is_default_context(request.arguments[0]):
        return None
    if is_new and not is_valid(request.arguments[0], is_setting=True):
        raise RegistryError(Fault.INVALID_SUBJECT, request.arguments[0][:200])
    return normalize(request.arguments[0])


def _by_id(service: Service, request: Request) -> SchemaValue:
    text = request.arguments[0]
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise RegistryError(Fault.SCHEMA_NOT_FOUND, f"{text[:100]} ")
    found = service.state.by_id(int(text), request.text("subject") or None)
    if found is None or not _is_readable(service, request, found):
        raise RegistryError(Fault.SCHEMA_NOT_FOUND, f"{text} ")
    return found


def _is_readable(service: Service, request: Request, found: SchemaValue) -> bool:
    """Return whether the user may read a subject that has this schema."""
    if request.rights.is_admin:
        return True
    holders = service.state.ids_of(context_of(found.subject), found.id)
    return any(request.rights.may_read(name) for name, _ in holders)


def _holders(service: Service, request: Request) -> list[SchemaValue]:
    found = _by_id(service, request)
    state, deleted = service.state, request.flag("deleted")
    holders = (state.version(name, n, deleted=deleted) for name, n in state.ids_of(context_of(found.subject), found.id))
    return [each for each in holders if each is not None and request.rights.may_read(each.subject)]


def _version(service: Service, request: Request, *, deleted: bool | None = None) -> SchemaValue:
    subject, number, state = _subject(request), parse_version(request.arguments[1]), service.state
    deleted = request.flag("deleted") if deleted is None else deleted
    names = [subject]
    if context_of(subject) == DEFAULT_CONTEXT:
        names += [prefix_of(context) + subject for context in state.contexts]
    for name in names:
        found = state.latest(name) if number == LATEST else state.version(name, number, deleted=deleted)
        if found is not None and request.rights.may_read(found.subject):
            return found
    _not_found(service, subject, number=number, deleted=deleted)
    raise AssertionError


def _not_found(service: Service, subject: str, *, number: int | None = None, deleted: bool) -> Any:
    if not service.state.has_subject(subject, deleted=deleted):
        raise RegistryError(Fault.SUBJECT_NOT_FOUND, subject)
    if number is None:
        raise RegistryError(Fault.SCHEMA_NOT_FOUND, "")
    raise RegistryError(Fault.VERSION_NOT_FOUND, number)


def _form(service: Service, value: SchemaValue, form: str) -> str | None:
    """Return the text of a schema in another form, None for its own."""
    if not form.strip():
        return None
    return language(value.type).formatted(service.loader.load(value).tree, form.strip().lower())


def _qualify_references(view: dict[str, Any], value: SchemaValue, request: Request) -> None:
    if request.text("referenceFormat") == "qualified" and value.references and context_of(value.subject) != DEFAULT_CONTEXT:
        for each in view["references"]:
            each["subject"] = qualify(each["subject"], value.subject)


def _normalizes(service: Service, request: Request, subject: str) -> bool:
    return request.flag("normalize") or bool(service.state.config_in_scope(subject).normalize)


def _has_rule(value: SchemaValue, type_: str) -> bool:
    rules = value.rule_set
    every = (*(rules.migration_rules or ()), *(rules.domain_rules or ()), *(rules.encoding_rules or ())) if rules else ()
    return any(each.type == type_ for each in every)


def _page(found: Sequence[T], request: Request) -> Sequence[T]:
    if not request.query:
        return found
    first, limit = max(0, request.number("offset", 0)), request.number("limit", -1)
    return found[first : first + limit] if limit >= 0 else found[first:]


def _size(request: SchemaRequest) -> int:
    return len(request.schema or "") + 1000 * len(request.references or ())


def _heavy(service: Service, subject: str, request: SchemaRequest) -> int:
    """Return how much a registration has to look at: its own schema and the versions that it may be compared with."""
    level = service.state.config_in_scope(subject).compatibility_level or DEFAULT_LEVEL
    earlier = service.state.all_versions(subject)
    among = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    return _size(request) + sum(len(each.schema) for each in among)


__all__ = ["Change", "ROUTES", "Raw", "make_router"]
