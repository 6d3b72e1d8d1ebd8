"""Which registered schema rows are written with: one made from their columns, the newest of a subject, or one that was named."""

from __future__ import annotations

from collections.abc import Callable

from logflume.log.errors import InvalidInput

from .fitting import Target, misfits
from .registries import RegisteredSchema, SchemaNotFound, registry_at
from .serdes import FormatSpec
from .types import Column, DataType, Kind


def schema_to_write_with(
    spec: FormatSpec,
    kind: str,
    columns: tuple[Column, ...],
    derive: Callable[[], str],
    read: Callable[[RegisteredSchema], Target],
) -> RegisteredSchema:
    """Return the schema that rows of columns are written with: of `schema_id`, the newest of the subject, else the derived one.

    `read`: what a schema of this format holds.

    Raises:
        InvalidInput: the schema is of another kind, does not fit the columns, or is not registered and must not be.
        RegistryRefused, RegistryUnavailable, SchemaNotFound.
    """
    registry = registry_at(spec.registry)
    if not spec.schema_id and not spec.uses_latest:
        return _derived(spec, kind, derive())
    found = registry.by_id(spec.schema_id) if spec.schema_id else registry.latest(spec.subject)
    if found.kind != kind:
        raise InvalidInput(f"schema {found.id} is {found.kind}, expected {kind}: it is to be written with")
    if spec.is_strict:
        _check_fits(found, read(found), spec, columns)
    return found


def _derived(spec: FormatSpec, kind: str, text: str) -> RegisteredSchema:
    registry = registry_at(spec.registry)
    if spec.registers:
        schema_id = registry.register(spec.subject, kind, text, normalizes=spec.normalizes)
    else:
        try:
            schema_id = registry.id_of(spec.subject, kind, text, normalizes=spec.normalizes)
        except SchemaNotFound as error:
            raise InvalidInput(
                f"{spec.subject} does not have the schema of these columns, and registering is off ({error}); register {text}, "
                "or write with the newest one"
            ) from None
    if spec.registers and not spec.normalizes:
        return RegisteredSchema(schema_id, kind, text)
    return registry.by_id(schema_id)


def _check_fits(found: RegisteredSchema, target: Target, spec: FormatSpec, columns: tuple[Column, ...]) -> None:
    is_bare = not spec.is_wrapped and len(columns) == 1
    problem = next(misfits(columns[0].type if is_bare else DataType(Kind.STRUCT, fields=columns), target), None)
    if problem is not None:
        raise InvalidInput(
            f"schema {found.id} of {spec.subject} does not fit what is written: {problem}; write with another schema, or say "
            "that rows are judged one by one (is_strict=False, id.compatibility.strict=false, latest.compatibility.strict=false)"
        )
