"""The identity of a schema everywhere: the MD5 of its text, references, metadata and rules, written as a GUID.

Two registries that hold the same schema give it the same GUID; ids are of one context of one registry. The bytes that are hashed,
and their order, are those of Confluent's registry.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence

from .records import Metadata, Reference, Rule, RuleSet


def digest_of(
    schema: str, references: Sequence[Reference] = (), metadata: Metadata | None = None, rule_set: RuleSet | None = None
) -> bytes:
    """Return the 16 bytes."""
    if not references and metadata is None and rule_set is None:
        return hashlib.md5(schema.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    parts = [schema.encode("utf-8", "surrogatepass")]
    for each in references:
        parts += [each.name.encode(), each.subject.encode(), each.version.to_bytes(4, "big", signed=True)]
    if metadata is not None:
        parts.append(b"\x01")
        parts += _metadata_parts(metadata)
    if rule_set is not None:
        parts.append(b"\x01")
        parts += _rule_set_parts(rule_set)
    return hashlib.md5(b"".join(parts), usedforsecurity=False).digest()


def guid_of(digest: bytes) -> str:
    """Return the digest as a GUID.

    >>> guid_of(digest_of('"string"'))
    '095d71cf-1255-6b9d-5e33-0ad575b3df5d'
    """
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def digest_from(text: str) -> bytes | None:
    """Return the digest that a GUID or 32 hex digits stand for, None when the text is neither."""
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        return None


def _metadata_parts(metadata: Metadata) -> list[bytes]:
    parts = []
    for name, values in sorted((metadata.tags or {}).items()):
        parts += [name.encode(), *(each.encode() for each in sorted(set(values)))]
    parts += _pairs(metadata.properties)
    parts += [each.encode() for each in sorted(set(metadata.sensitive or ()))]
    return parts


def _rule_set_parts(rule_set: RuleSet) -> list[bytes]:
    rules = (*(rule_set.migration_rules or ()), *(rule_set.domain_rules or ()), *(rule_set.encoding_rules or ()))
    parts = [part for rule in rules for part in _rule_parts(rule)]
    return [*parts, (rule_set.enable_at or "").encode()]


def _rule_parts(rule: Rule) -> list[bytes]:
    head = [each.encode() for each in (rule.name, rule.doc, rule.kind, rule.mode, rule.type) if each is not None]
    tags = [each.encode() for each in sorted(set(rule.tags or ()))]
    tail = [each.encode() for each in (rule.expr, rule.on_success, rule.on_failure) if each is not None]
    return [*head, *tags, *_pairs(rule.params), *tail, *([b"\x01"] if rule.disabled else [])]


def _pairs(values: Mapping[str, str] | None) -> list[bytes]:
    return [part.encode() for pair in sorted((values or {}).items()) for part in pair]
