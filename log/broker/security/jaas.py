"""`sasl.jaas.config` as Kafka's files have it: read for its options, nothing of it is ever loaded.

org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" user_alice="secret";
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from logflume.log.errors import InvalidInput

MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": "PLAIN",
    "org.apache.kafka.common.security.scram.ScramLoginModule": "SCRAM",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": "OAUTHBEARER",
    "com.sun.security.auth.module.Krb5LoginModule": "GSSAPI",
}
_HEAD = re.compile(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION = re.compile(r'\s*([\w.\-@]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_END = re.compile(r"\s*;\s*")


def parse_jaas(text: str, *, setting: str) -> Mapping[str, str]:
    """Return the options of the one module. Raises InvalidInput, which shows no value."""
    head = _HEAD.match(text)
    if head is None:
        raise InvalidInput(f'{setting}: expected MODULE required NAME="VALUE" ...;')
    if head[1] not in MODULES:
        raise InvalidInput(f"{setting}: unknown login module {head[1][:100]!r}; expected one of {', '.join(MODULES)}")
    options: dict[str, str] = {}
    position = head.end()
    while (match := _OPTION.match(text, position)) is not None:
        options[match[1]] = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        position = match.end()
    if not _END.fullmatch(text, position):
        raise InvalidInput(
            f'{setting}: expected NAME="VALUE" pairs and a semicolon at the end, found something else at character {position}'
        )
    return options


def plain_passwords(options: Mapping[str, str]) -> dict[str, str]:
    """Return the users of a PLAIN module: its `user_NAME` options.

    >>> plain_passwords({"username": "admin", "user_alice": "secret"})
    {'alice': 'secret'}
    """
    return {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}
