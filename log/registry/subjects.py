"""Subjects and contexts: `orders-value` is in the default context, `:.eu:orders-value` in the context `.eu`.

A subject's qualified form is its only name inside the registry; the default context is left out of it. The context `.__GLOBAL`
holds settings that lie behind those of every other context, and no schemas.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_CONTEXT = "."
GLOBAL_CONTEXT = ".__GLOBAL"
ANY_CONTEXT = "*"
_PREFIX = ":."
_ANY_PREFIX = ":*:"
_RESERVED_NAMES = ("__GLOBAL", "__EMPTY")
MAX_SUBJECT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject taken apart; `name` is empty for a context as a whole."""

    context: str
    name: str

    def __str__(self) -> str:
        return prefix_of(self.context) + self.name


def parse_subject(text: str) -> Subject:
    """Return context and name.

    >>> parse_subject(":.eu:orders"), parse_subject("orders"), str(parse_subject(":.:orders"))
    (Subject(context='.eu', name='orders'), Subject(context='.', name='orders'), 'orders')
    """
    if text.startswith(_PREFIX):
        context, _, name = text[1:].partition(":")
        return Subject(context, name)
    if text.startswith(_ANY_PREFIX):
        return Subject(ANY_CONTEXT, text[len(_ANY_PREFIX) :])
    return Subject(DEFAULT_CONTEXT, text)


def normalize(text: str) -> str:
    """Return the qualified form."""
    return str(parse_subject(text)) if text.startswith(":") else text


def prefix_of(context: str) -> str:
    """Return what names a context in front of a subject: empty for the default one."""
    return "" if context == DEFAULT_CONTEXT else f":{context}:"


def context_of(text: str) -> str:
    """Return the context of a qualified subject.

    >>> context_of(":.eu:orders"), context_of("orders")
    ('.eu', '.')
    """
    return parse_subject(text).context if text.startswith(":") else DEFAULT_CONTEXT


def qualify(subject: str, parent: str) -> str:
    """Return a subject as it is meant inside `parent`: in the parent's context unless it names one itself.

    >>> qualify("types", ":.eu:orders"), qualify(":.us:types", ":.eu:orders")
    (':.eu:types', ':.us:types')
    """
    found = parse_subject(subject)
    if found.context != DEFAULT_CONTEXT:
        return str(found)
    return str(Subject(context_of(parent), found.name))


def is_valid(text: str, *, is_setting: bool) -> bool:
    """Return whether a subject may be registered under, or, with `is_setting`, have a configuration or mode."""
    if len(text) > MAX_SUBJECT_CHARS or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        return False
    found = parse_subject(text)
    if found.name in _RESERVED_NAMES:
        return False
    return is_setting or (found.context not in (GLOBAL_CONTEXT, ANY_CONTEXT) and found.name not in ("", "*"))


def is_default_context(text: str) -> bool:
    """Return whether a text names the default context as a whole, whose settings are the top-level ones."""
    return text in (":.:", ":.", "")
