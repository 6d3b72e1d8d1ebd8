"""The audit log: who, from where, did what on what, allowed or not: every denial, change and login, a JSON object a line.

It names things and never holds what is in them: no value of a setting, no credential, no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log.broker.access import Operation, Resource
from logflume.log.protocol import MessageBase, error_of, messages, tables

if TYPE_CHECKING:
    from logflume.log.broker.ports import Clock
    from logflume.log.broker.requests import RequestContext

MAX_NAMES = 1000
"""Names in a line; `more` says how many are left out."""
LISTINGS = ("ListGroups", "ListTransactions", "ListConfigResources")
"""APIs that leave out what may not be seen, which is no denial; Metadata of all topics is one too."""


def _names(parts: Iterable[Any], field: str) -> Iterator[str]:
    return (str(getattr(part, field)) for part in parts or ())


CHANGES: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "CreateTopics": lambda request: _names(request.topics, "name"),
    "DeleteTopics": lambda request: (
        *request.topic_names,
        *(each.name or each.topic_id.hex() for each in request.topics),
    ),
    "CreatePartitions": lambda request: _names(request.topics, "name"),
    "DeleteRecords": lambda request: _names(request.topics, "name"),
    "AlterConfigs": lambda request: _configs(request),
    "IncrementalAlterConfigs": lambda request: _configs(request),
    "CreateAcls": lambda request: (f"{each.principal} on {each.resource_name}" for each in request.creations),
    "DeleteAcls": lambda request: (f"{each.principal_filter} on {each.resource_name_filter}" for each in request.filters),
    "AlterUserScramCredentials": lambda request: (*_names(request.deletions, "name"), *_names(request.upsertions, "name")),
    "AlterClientQuotas": lambda request: (
        ",".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity) for entry in request.entries
    ),
    "DeleteGroups": lambda request: request.groups_names,
    "OffsetDelete": lambda request: [request.group_id],
    "CreateDelegationToken": lambda request: [request.owner_principal_name or "own"],
    "RenewDelegationToken": lambda request: (),
    "ExpireDelegationToken": lambda request: (),
    "UpdateFeatures": lambda request: _names(request.feature_updates, "feature"),
    "WriteTxnMarkers": lambda request: _names(request.markers, "producer_id"),
}
"""API -> what a request changes, by name."""


def _configs(request: messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest) -> Iterator[str]:
    for resource in request.resources:
        for config in resource.configs:
            yield f"{resource.resource_name}: {config.name}"


class Audit:
    """Writes lines. `write` takes one without its end."""

    def __init__(self, write: Callable[[str], None], clock: Clock) -> None:
        self._write, self._clock = write, clock
        keys = tables.api_names()
        self._changes = {keys[name]: (name, names) for name, names in CHANGES.items() if name in keys}
        self._listings = frozenset(keys[name] for name in LISTINGS if name in keys)
        self._api_names = {key: name for name, key in keys.items()}

    def is_listing(self, api_key: int, request: MessageBase) -> bool:
        """Whether a request asks for all that may be seen."""
        return api_key in self._listings or (isinstance(request, messages.MetadataRequest) and request.topics is None)

    def is_change(self, api_key: int) -> bool:
        return api_key in self._changes

    def denied(self, context: RequestContext, operation: Operation, resource: Resource, name: str) -> None:
        """Note what somebody may not do."""
        what = {"operation": operation.name.lower(), "resource": resource.name.lower(), "on": [name], "allowed": False}
        self._line(context, self._api_names[context.api_key], what)

    def changed(self, context: RequestContext, request: MessageBase, response: object) -> None:
        """Note a change that was asked for, and which errors came of it."""
        api, names = self._changes[context.api_key]
        found = list(names(request))
        what: dict[str, Any] = {"on": found[:MAX_NAMES], "allowed": True, "errors": sorted(_errors(response))}
        if len(found) > MAX_NAMES:
            what["more"] = len(found) - MAX_NAMES
        self._line(context, api, what)

    def logged_in(self, host: str, mechanism: str, principal: str, reason: str | None) -> None:
        """Note a login, or why there was none."""
        what = {"principal": principal or None, "host": host, "api": "login", "mechanism": mechanism, "allowed": reason is None}
        self._put(what if reason is None else {**what, "reason": reason})

    def _line(self, context: RequestContext, api: str, what: dict[str, Any]) -> None:
        who = {"principal": context.principal, "host": context.host, "listener": context.listener}
        self._put({**who, "client_id": context.client_id, "api": api, **what})

    def _put(self, what: dict[str, Any]) -> None:
        self._write(msgspec.json.encode({"at_ms": self._clock.wall_ms(), **what}, enc_hook=str).decode())


def _errors(response: object) -> set[str]:
    """Return the names of the errors in an answer: its own, and those of its parts."""
    codes = {getattr(response, "error_code", 0)}
    for field in getattr(type(response), "__slots__", ()):
        parts = getattr(response, field, None)
        if isinstance(parts, list):
            codes |= {getattr(part, "error_code", 0) for part in parts}
    return {error_of(code).name for code in codes - {0}}
