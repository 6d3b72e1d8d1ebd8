"""SASL GSSAPI with Kerberos V5 (RFC 4752): a ticket of the realm's own authority says who it is.

The cryptography is a `TicketContext`'s; here are the order of the messages, the choice of a layer (none: TLS is what
encrypts) and `sasl.kerberos.principal.to.local.rules`, which make a user of a principal (Hadoop's auth_to_local, as in Kafka).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import re2

from logflume.log.broker.ports import Offload, TicketAcceptor
from logflume.log.broker.replies import Reply
from logflume.log.errors import InvalidInput

from .login import Identity, LoginFailed, Step

SETTING = "sasl.kerberos.principal.to.local.rules"
NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))
"""The layers that there are, and the bytes of a message of one: none."""
MAX_NAME_CHARS, MAX_RULES, MAX_PARTS = 1024, 100, 2
_PRINCIPAL = re.compile(r"([^/@\\]+)(?:/([^/@\\]+))?@([^/@\\]+)")
_RULE = re.compile(r"RULE:\[(\d{1,3}):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?")
_NUMBER = re.compile(r"\$(\d+)")
_SIMPLE = re.compile(r"[^/@\s]{1,1024}")


@dataclass(frozen=True, slots=True)
class _Rule:
    """`text` is made of the principal's parts; where it is `pattern` (None: always), `old` in it becomes `new`."""

    parts: int
    text: str
    pattern: Any
    old: Any
    new: str
    is_everywhere: bool
    case: str

    def apply(self, values: Sequence[str]) -> str | None:
        """Return the name for [realm, name] or [realm, name, host], None if the rule is not about it."""
        if len(values) - 1 != self.parts:
            return None
        text = _NUMBER.sub(lambda number: values[int(number[1])], self.text)
        if self.pattern is not None and self.pattern.fullmatch(text) is None:
            return None
        if self.old is not None:
            text = self.old.sub(self._replacement, text, count=0 if self.is_everywhere else 1)
        return text

    def _replacement(self, match: re.Match[str]) -> str:
        return _NUMBER.sub(lambda number: match.group(int(number[1])) or "", self.new)


class LocalRules:
    """Rules in their order; the first that is about a principal says the user's name.

    >>> LocalRules("RULE:[2:$1@$0](admin@.*)s/@.*//,DEFAULT", realm="ACME.COM").user("admin/ops@OTHER.COM")
    'admin'
    """

    def __init__(self, text: str, *, realm: str) -> None:
        """`realm`: the one whose principals DEFAULT is about. Raises InvalidInput: a rule that does not parse."""
        words = [word.strip() for word in text.split(",") if word.strip()] or ["DEFAULT"]
        if len(words) > MAX_RULES:
            raise InvalidInput(f"{SETTING}: at most {MAX_RULES} rules, found {len(words)}")
        self._realm = realm
        self._rules = [None if word == "DEFAULT" else _rule(word) for word in words]

    def user(self, principal: str) -> str:
        """Return the user that a principal stands for. Raises LoginFailed."""
        match = _PRINCIPAL.fullmatch(principal) if len(principal) <= MAX_NAME_CHARS else None
        if match is None:
            raise LoginFailed(f"the principal {principal[:100]!r} is not NAME@REALM or NAME/HOST@REALM")
        values = [match[3], match[1], *([match[2]] if match[2] else [])]
        for rule in self._rules:
            if rule is None:
                name, case = match[1] if match[3] == self._realm else None, ""
            else:
                name, case = rule.apply(values), rule.case
            if name is not None:
                if not _SIMPLE.fullmatch(name):
                    raise LoginFailed(f"{SETTING} make {name[:100]!r} of {principal[:100]!r}: no simple name")
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise LoginFailed(f"no rule of {SETTING} is about {principal[:100]!r}")


def _rule(word: str) -> _Rule:
    match = _RULE.fullmatch(word)
    if match is None:
        raise InvalidInput(
            f"{SETTING}: expected DEFAULT or RULE:[PARTS:TEXT](PATTERN)s/OLD/NEW/g, L or U at its end, found {word[:100]!r}"
        )
    parts = int(match[1])
    wrong = [number for number in _NUMBER.findall(match[2]) if int(number) > parts]
    if wrong or not 1 <= parts <= MAX_PARTS:
        raise InvalidInput(f"{SETTING}: {word[:100]!r} asks for more parts than a principal of {parts} has; $0 is the realm")
    old, new = _pattern(match[4], word), match[5] or ""
    if any(int(number) > old.groups for number in _NUMBER.findall(new)):
        raise InvalidInput(f"{SETTING}: {word[:100]!r}: {new[:100]!r} names a group of {old.groups}")
    return _Rule(parts, match[2], _pattern(match[3], word), old, new, match[6] == "g", match[7] or "")


def _pattern(text: str | None, word: str) -> Any:
    if text is None:
        return None
    try:
        return re2.compile(text)  # in linear time: principals are a stranger's text
    except re2.error as error:
        raise InvalidInput(f"{SETTING}: {word[:100]!r}: {text[:100]!r} is no pattern: {error}") from None


class KerberosExchange:
    """One exchange: tokens until the context stands, then the offer of layers and the client's choice."""

    __slots__ = ("_context", "_has_offered", "_offload", "_rules")

    def __init__(self, acceptor: TicketAcceptor, rules: LocalRules, offload: Offload) -> None:
        self._context, self._rules, self._offload = acceptor.begin(), rules, offload
        self._has_offered = False

    def respond(self, token: bytes) -> Step | Reply:
        return self._offload(lambda: self._answer(token))

    def _answer(self, token: bytes) -> Step:
        """Follow RFC 4752, section 3.2. Raises LoginFailed."""
        context = self._context
        if self._has_offered:
            check_choice(context.unwrap(token))
            principal = context.initiator()
            assert principal is not None
            return Step(b"", Identity(f"User:{self._rules.user(principal)}"))
        if context.initiator() is None:
            if not token:
                raise LoginFailed("expected a ticket, found an empty message")
            answer = context.accept(token)
            if answer or context.initiator() is None:
                return Step(answer)
        elif token:
            raise LoginFailed("expected an empty message once the context stands")
        self._has_offered = True
        return Step(context.wrap(OFFER))


def check_choice(message: bytes) -> None:
    """Check the client's choice of a layer. Whom it asks to act as is not looked at: it is who its ticket says, as in Kafka.

    Raises LoginFailed.
    """
    if not 4 <= len(message) <= 4 + MAX_NAME_CHARS:
        raise LoginFailed(f"the choice of a layer has {len(message)} bytes, expected 4 and a name")
    if message[0] != NO_LAYER:
        raise LoginFailed("a layer of GSSAPI was chosen; there is none here: TLS is what encrypts")
