"""The records of `_schemas`, in Confluent's own form, so that either registry can take the other's topic over.

Keys are compared as bytes by compaction; so a key is written with exactly these names in exactly this order.
A value that is missing (a tombstone) deletes what the key names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from logflume.log.errors import DecodeError

TENANT = "default"
DEFAULT_TYPE = "AVRO"


class KeyType(StrEnum):
    """What a record is about."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    CONTEXT = "CONTEXT"
    NOOP = "NOOP"


class Key(msgspec.Struct, frozen=True):
    """A record's key, of any type."""

    keytype: str
    subject: str | None = None
    version: int = 0
    context: str = ""


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one uses: under `name` in its text, registered as `version` of `subject`."""

    name: str
    subject: str
    version: int


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a schema's owner says about it; part of its identity."""

    properties: dict[str, str] | None = None
    sensitive: tuple[str, ...] | None = None
    tags: dict[str, tuple[str, ...]] | None = None


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A rule of a data contract; clients carry it out, the registry keeps it."""

    name: str | None = None
    doc: str | None = None
    kind: str | None = None
    mode: str | None = None
    type: str | None = None
    tags: tuple[str, ...] | None = None
    params: dict[str, str] | None = None
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool = False


class RuleSet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The rules of a schema."""

    migration_rules: tuple[Rule, ...] | None = None
    domain_rules: tuple[Rule, ...] | None = None
    encoding_rules: tuple[Rule, ...] | None = None
    enable_at: str | None = None


class SchemaValue(msgspec.Struct, frozen=True, rename="camel"):
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str | None = None
    references: tuple[Reference, ...] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    deleted: bool = False

    @property
    def type(self) -> str:
        """AVRO, JSON or PROTOBUF."""
        return self.schema_type or DEFAULT_TYPE


class ConfigValue(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The configuration of a subject, of a context or of all; None: what lies behind it decides."""

    subject: str | None = None
    alias: str | None = None
    alias_for_deks: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    compatibility_level: str | None = None
    compatibility_policy: str | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None


class ModeValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mode of a subject, of a context or of all."""

    subject: str | None = None
    mode: str | None = None


class DeleteSubjectValue(msgspec.Struct, frozen=True):
    """All versions up to this one are soft-deleted."""

    subject: str
    version: int


class ClearSubjectValue(msgspec.Struct, frozen=True):
    """What was deleted of a subject or context is to be forgotten."""

    subject: str | None = None


class ContextValue(msgspec.Struct, frozen=True):
    """A context exists."""

    context: str
    tenant: str = TENANT


Value = SchemaValue | ConfigValue | ModeValue | DeleteSubjectValue | ClearSubjectValue | ContextValue | None
_VALUE_TYPES: dict[str, type] = {
    KeyType.SCHEMA: SchemaValue,
    KeyType.CONFIG: ConfigValue,
    KeyType.MODE: ModeValue,
    KeyType.DELETE_SUBJECT: DeleteSubjectValue,
    KeyType.CLEAR_SUBJECT: ClearSubjectValue,
    KeyType.CONTEXT: ContextValue,
}
_KEY_FIELDS: dict[str, tuple[tuple[str, ...], int | None]] = {
    KeyType.SCHEMA: (("subject", "version"), 1),
    KeyType.CONFIG: (("subject",), 0),
    KeyType.MODE: (("subject",), 0),
    KeyType.DELETE_SUBJECT: (("subject",), 0),
    KeyType.CLEAR_SUBJECT: (("subject",), 0),
    KeyType.NOOP: ((), 0),
}
"""Fields behind `keytype`, and the `magic` byte at the end."""

_decode_key = msgspec.json.Decoder(Key).decode
_value_decoders: dict[str, Callable[[bytes], Value]] = {
    name: msgspec.json.Decoder(kind).decode for name, kind in _VALUE_TYPES.items()
}


class Entry(msgspec.Struct, frozen=True):
    """A key with its value: what is written and what is applied."""

    key: Key
    value: Value = None


def schema_key(subject: str, version: int) -> Key:
    return Key(KeyType.SCHEMA, subject, version)


def encode_key(key: Key) -> bytes:
    """Return a key's bytes.

    >>> encode_key(schema_key("orders-value", 1))
    b'{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}'
    """
    if key.keytype == KeyType.CONTEXT:
        return msgspec.json.encode({"keytype": key.keytype, "tenant": TENANT, "context": key.context})
    names, magic = _KEY_FIELDS[key.keytype]
    return msgspec.json.encode({"keytype": key.keytype, **{name: getattr(key, name) for name in names}, "magic": magic})


def encode_value(value: Value) -> bytes | None:
    """Return a value's bytes; what is empty is left out, as the other registry does."""
    if value is None:
        return None
    fields = msgspec.to_builtins(value)
    if isinstance(value, SchemaValue) and value.type == DEFAULT_TYPE:
        fields.pop("schemaType", None)
    return msgspec.json.encode({name: field for name, field in fields.items() if field is not None and field not in ([], {})})


def decode(key: bytes, value: bytes | None) -> Entry:
    """Return the entry of a record.

    Raises:
        DecodeError: the record is none of `_schemas`; says where.
    """
    try:
        found = _decode_key(key)
        if value is None or found.keytype == KeyType.NOOP:
            return Entry(found)
        decoder = _value_decoders.get(found.keytype)
        if decoder is None:
            return Entry(found)
        return Entry(found, decoder(value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeError(f"expected a record of a schema registry, found key {key[:200]!r}: {error}") from error


def is_known(key: Key) -> bool:
    """Return whether this registry knows what a record of this key means."""
    return key.keytype in _KEY_FIELDS or key.keytype == KeyType.CONTEXT


def references_of(value: SchemaValue) -> Sequence[Reference]:
    return value.references or ()
