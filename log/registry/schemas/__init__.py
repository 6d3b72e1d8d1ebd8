"""Schemas of three languages, parsed: text and resolved references in, types and canonical text out. Pure; knows no registry.

schema = parse("AVRO", text, references, resolved)
schema.text, schema.tree
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from logflume.log.registry.records import Reference

from .parsed import InvalidSchema, Language, Limits, ParsedSchema, Resolved

TYPES = ("JSON", "PROTOBUF", "AVRO")
_MODULES = {"AVRO": ".avro_language", "JSON": ".json_language", "PROTOBUF": ".protobuf_language"}
DEFAULT_LIMITS = Limits()


def language(type_: str) -> Language:
    """Return the language of a schema type; loaded when first used. Raises InvalidSchema for an unknown one."""
    if type_ not in _MODULES:
        raise InvalidSchema(f"Invalid schema type {type_}; expected one of {', '.join(TYPES)}")
    found: Language = import_module(_MODULES[type_], __name__).LANGUAGE
    return found


def parse(
    type_: str,
    text: str,
    references: Sequence[Reference] = (),
    resolved: Sequence[Resolved] = (),
    *,
    is_new: bool = False,
    normalize: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> ParsedSchema:
    """Return a schema with its canonical text.

    `resolved`: texts of the references and of theirs, each before what uses it. `is_new`: check what older schemas may fail.

    Raises:
        InvalidSchema: the text is no schema, too large or too deep; says where.
    """
    if len(text) > limits.text_chars:
        raise InvalidSchema(f"a schema has at most {limits.text_chars} characters, found {len(text)}")
    if len(resolved) > limits.references:
        raise InvalidSchema(f"a schema has at most {limits.references} references, found {len(resolved)}")
    spoken = language(type_)
    try:
        tree = spoken.parse(text, resolved, is_new=is_new, limits=limits)
        canonical = spoken.canonical(tree, normalize=normalize)
    except RecursionError:
        raise InvalidSchema(f"a schema is nested at most {limits.depth} deep") from None
    kept = tuple(sorted(set(references), key=lambda r: (r.name, r.subject, r.version))) if normalize else tuple(references)
    return ParsedSchema(type_, canonical, kept, tree)


__all__ = ["DEFAULT_LIMITS", "InvalidSchema", "Language", "Limits", "ParsedSchema", "Resolved", "TYPES", "language", "parse"]
