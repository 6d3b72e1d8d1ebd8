"""The principal of a client certificate: its subject through `ssl.principal.mapping.rules` (KIP-371)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import re2

from logflume.log.errors import InvalidInput

MAX_RULES = 100
_RULE = re.compile(r"(?:DEFAULT|RULE:((?:\\/|[^/])*)/((?:\\/|[^/])*)/([LU]?))\s*(?:,\s*|$)")
_GROUP = re.compile(r"\$(\d+)")
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern` None is DEFAULT: the subject as it is."""

    pattern: Any
    replacement: str = ""
    case: str = ""


class PrincipalRules:
    """Rules in their order; the first whose pattern is the whole subject says the name.

    >>> PrincipalRules("RULE:^CN=(.*?),.*$/$1/L,DEFAULT").name("CN=Alice,O=Acme")
    'alice'
    """

    def __init__(self, text: str) -> None:
        """Raises InvalidInput: a rule that does not parse."""
        self._rules: list[_Rule] = []
        position, text = 0, text.strip() or "DEFAULT"
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None or len(self._rules) >= MAX_RULES:
                raise InvalidInput(
                    "ssl.principal.mapping.rules: expected DEFAULT or RULE:PATTERN/REPLACEMENT/, L or U at its end, commas "
                    f"between them, found {text[position : position + 100]!r}"
                )
            self._rules.append(_rule(match))
            position = match.end()

    def name(self, subject: str) -> str | None:
        """Return the name for a subject (as RFC 2253 writes it), None if no rule is about it."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            match = rule.pattern.fullmatch(subject)
            if match is not None:
                name = _GROUP.sub(lambda group: match.group(int(group[1])) or "", rule.replacement)  # noqa: B023
                return _CASES[rule.case](name)
        return None


def _rule(match: re.Match[str]) -> _Rule:
    if match[1] is None:
        return _Rule(None)
    pattern_text, replacement = match[1].replace(r"\/", "/"), match[2].replace(r"\/", "/")
    try:
        pattern = re2.compile(pattern_text.strip())  # in linear time: subjects are a stranger's text
    except re2.error as error:
        raise InvalidInput(f"ssl.principal.mapping.rules: {pattern_text[:100]!r} is no pattern: {error}") from None
    wrong = [group for group in _GROUP.findall(replacement) if int(group) > pattern.groups]
    if wrong:
        raise InvalidInput(f"ssl.principal.mapping.rules: {replacement[:100]!r} names group {wrong[0]}, of {pattern.groups}")
    return _Rule(pattern, replacement, match[3])
