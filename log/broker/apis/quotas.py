"""DescribeClientQuotas and AlterClientQuotas (KIP-546). Quotas are kept with the cluster's metadata and apply at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from logflume.log.broker.core import Core
from logflume.log.broker.quotas import Entity, QuotaTable
from logflume.log.broker.quotas.entities import ENTITY_TYPES, IP, MAX_ENTITIES, check_entity, check_quota
from logflume.log.broker.quotas.store import DOCUMENT, store_quotas
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, detail_of, messages

CHECKS_AT_A_TIME, AT_A_TIME = 100, 500
"""Entities that are changed, and told, in one slice of the loop's time."""
MAX_OPERATIONS = 100
MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = 0, 1, 2


def describe_client_quotas(core: Core, context: RequestContext, request: messages.DescribeClientQuotasRequest) -> Steps:
    """List the quotas of the entities that a filter selects; `strict` leaves out those with more parts than it names."""
    response = messages.DescribeClientQuotasResponse(error_message=None)
    try:
        wanted = _filter(request.components)
    except KafkaError as error:
        response.error_code, response.error_message, response.entries = error.number, detail_of(error), None
        return response
    response.entries = []
    for number, (entity, quotas) in enumerate(core.quotas.table.entries.items(), start=1):
        if _selects(wanted, dict(entity), is_strict=request.strict):
            response.entries.append(
                response.EntryData(
                    entity=[response.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted_parts(entity)],
                    values=[response.ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
        if number % AT_A_TIME == 0:
            yield None
    return response


def sorted_parts(entity: Entity) -> list[tuple[str, str | None]]:
    """Return the parts of an entity in the order user, client-id, ip."""
    return sorted(entity, key=lambda part: ENTITY_TYPES.index(part[0]))


def _filter(components: Iterable[messages.DescribeClientQuotasRequest.ComponentData]) -> dict[str, Callable[[str | None], bool]]:
    """Return a test of the name by entity type. Raises KafkaError."""
    wanted: dict[str, Callable[[str | None], bool]] = {}
    for component in components:
        kind, match = component.entity_type, component.match
        if kind not in ENTITY_TYPES:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST,
                f"entity type {kind[:100]!r}: expected user, client-id or ip",
            )
        if kind in wanted:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{kind} is named twice in the filter")
        if component.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"match type {component.match_type}: expected 0 (exact), 1 (default) or 2"
            )
        if (match is None) is (component.match_type == MATCH_EXACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{kind}: an exact match, and only that, has a name")
        wanted[kind] = _any if component.match_type == MATCH_SPECIFIED else _equal_to(match)
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "ip cannot be combined with user or client-id in a filter")
    return wanted


def _any(name: str | None) -> bool:
    return True


def _equal_to(match: str | None) -> Callable[[str | None], bool]:
    return lambda name: name == match


def _selects(wanted: dict[str, Callable[[str | None], bool]], entity: dict[str, str | None], *, is_strict: bool) -> bool:
    if is_strict and entity.keys() != wanted.keys():
        return False
    return all(kind in entity and is_wanted(entity[kind]) for kind, is_wanted in wanted.items())


def alter_client_quotas(core: Core, context: RequestContext, request: messages.AlterClientQuotasRequest) -> Steps:
    """Set and remove quotas; each entity succeeds or fails alone."""
    return (yield from core.cluster.in_turn(DOCUMENT, _alter(core, request)))


def _alter(core: Core, request: messages.AlterClientQuotasRequest) -> Steps:
    response = messages.AlterClientQuotasResponse()
    old = core.quotas.table.entries
    table = dict(old)
    seen: set[Entity] = set()
    for number, entry in enumerate(request.entries, start=1):
        named = [(part.entity_type, part.entity_name) for part in entry.entity[: len(ENTITY_TYPES) + 1]]
        answer = response.EntryData(
            error_message=None, entity=[response.EntityData(entity_type=kind, entity_name=name) for kind, name in named]
        )
        response.entries.append(answer)
        try:
            _alter_one(table, entry, check_entity(named), seen)
        except KafkaError as error:
            answer.error_code, answer.error_message = error.number, detail_of(error)
        if number % CHECKS_AT_A_TIME == 0:
            yield None
    if not request.validate_only and table != old:
        yield from _store(core, QuotaTable(table), response)
    return response


def _alter_one(
    table: dict[Entity, Mapping[str, float]],
    entry: messages.AlterClientQuotasRequest.EntryData,
    entity: Entity,
    seen: set[Entity],
) -> None:
    """Raises KafkaError."""
    if entity in seen:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is named twice in one request")
    seen.add(entity)
    changed = _changed(entity, table.get(entity, {}), entry.ops)
    if entity not in table and changed and len(table) >= MAX_ENTITIES:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {MAX_ENTITIES} entities have quotas; use defaults")
    if changed:
        table[entity] = changed
    else:
        table.pop(entity, None)


def _changed(
    entity: Entity, old: Mapping[str, float], ops: Sequence[messages.AlterClientQuotasRequest.OpData]
) -> dict[str, float]:
    """Return the quotas of an entity after the operations. Raises KafkaError."""
    if len(ops) > MAX_OPERATIONS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(ops)} quotas for one entity: expected at most {MAX_OPERATIONS}")
    new = dict(old)
    keys = [op.key for op in ops]
    for op in ops:
        if keys.count(op.key) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"quota {op.key[:100]!r} is named twice for one entity")
        if op.remove:
            new.pop(op.key, None)
        else:
            check_quota(entity, op.key, op.value)
            new[op.key] = op.value
    return new


def _store(core: Core, table: QuotaTable, response: messages.AlterClientQuotasResponse) -> Steps:
    try:
        yield from store_quotas(core.cluster, table)
    except LogflumeError as error:
        for answer in response.entries:
            if not answer.error_code:
                answer.error_code, answer.error_message = ErrorCode.KAFKA_STORAGE_ERROR, detail_of(error)
        return
    core.quotas.set_table(table)
