"""How a client proves who it is and makes sure of the broker: one object, from settings under librdkafka's names.

    Security.from_settings({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice",
                            "sasl.password.file": "/run/secrets/alice", "ssl.ca.location": "ca.pem"})

A secret may stand in the settings, or be read each time it is needed from a file (`NAME.file`), an environment variable
(`NAME.env`) or the system's keyring (`NAME.keyring` = SERVICE/USER, with the package `keyring`). None is ever shown.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from logflume.log.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    from logflume.log.security import KeyMaterial

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.client.secret",
)
SETTINGS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.scram.tokenauth",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.scope",
    "sasl.kerberos.service.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.keytab",
    *SECRETS,
)
SOURCES = ("file", "env", "keyring")
_OTHER_NAMES = {"sasl.mechanisms": "sasl.mechanism"}
ENVIRONMENT_PREFIX = "LOGFLUME_"
MAX_SECRET_BYTES = 64 * 1024
Token = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Security:
    """Settings by name, checked when made. `token` is called for a token of OAUTHBEARER at each login."""

    settings: Mapping[str, str] = field(repr=False)
    token: Token | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput, UnknownName."""
        for name in self.settings:
            _check_name(name)
        for secret in SECRETS:
            given = [name for name in (secret, *(f"{secret}.{source}" for source in SOURCES)) if name in self.settings]
            if len(given) > 1:
                raise InvalidInput(f"{' and '.join(given)} say the same thing; keep one")
        _check_choice("security.protocol", self.protocol, PROTOCOLS)
        if self.has_sasl:
            self._check_sasl()
        elif any(name.startswith("sasl.") for name in self.settings):
            raise InvalidInput("sasl.* settings need security.protocol=SASL_SSL or SASL_PLAINTEXT")
        if not self.has_tls and any(name.startswith("ssl.") for name in self.settings):
            raise InvalidInput("ssl.* settings need security.protocol=SSL or SASL_SSL")

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], *, token: Token | None = None) -> Security:
        """Return the security of settings under librdkafka's names. Raises InvalidInput, UnknownName."""
        return cls({_OTHER_NAMES.get(name, name): value for name, value in settings.items()}, token)

    def __repr__(self) -> str:
        user = self.settings.get("sasl.username", "")
        return f"Security({self.protocol}{', ' + self.mechanism if self.has_sasl else ''}{', ' + repr(user) if user else ''})"

    @property
    def protocol(self) -> str:
        return self.settings.get("security.protocol", "plaintext").lower()

    @property
    def mechanism(self) -> str:
        return self.settings.get("sasl.mechanism", "").upper()

    @property
    def username(self) -> str:
        return self.settings.get("sasl.username", "")

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("ssl", "sasl_ssl")

    @property
    def has_sasl(self) -> bool:
        return self.protocol in ("sasl_plaintext", "sasl_ssl")

    def secret(self, name: str) -> str:
        """Return a secret, read anew from where it is kept; "" if it is not set. Raises InvalidInput."""
        if name in self.settings:
            return self.settings[name]
        for source, read in (("file", _from_file), ("env", _from_environment), ("keyring", _from_keyring)):
            where = self.settings.get(f"{name}.{source}")
            if where is not None:
                return read(where, f"{name}.{source}")
        return ""

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None without TLS; files are read anew. Raises InvalidInput."""
        if not self.has_tls:
            return None
        from logflume.log.security import client_context, load_trust

        return client_context(
            trust_pem=load_trust(location=self.settings.get("ssl.ca.location", ""), what="ssl.ca"),
            material=self._key_material(),
            checks_host=self.checks_host,
            ciphers=[part for part in self.settings.get("ssl.cipher.suites", "").replace(":", ",").split(",") if part],
            crl_pem=self.crl_pem(),
        )

    @property
    def checks_host(self) -> bool:
        """Whether who answers must show a certificate of the host that was asked. Raises InvalidInput."""
        checks = self.settings.get("ssl.endpoint.identification.algorithm", "https").lower()
        _check_choice("ssl.endpoint.identification.algorithm", checks, ("https", "none"))
        return checks == "https"

    def crl_pem(self) -> bytes:
        """Return the certificates that were revoked, b"" without; the file is read anew. Raises OSError."""
        path = self.settings.get("ssl.crl.location", "")
        return Path(path).read_bytes() if path else b""

    @property
    def is_delegated(self) -> bool:
        """Whether it logs in by a delegation token, whose id and secret stand in place of name and password."""
        return self.mechanism.startswith("SCRAM") and self.settings.get("sasl.scram.tokenauth") == "true"

    def certificate_subject(self) -> str:
        """Return whom the client's certificate is of, as RFC 2253 writes it; "" without one. Raises InvalidInput."""
        material = self._key_material() if self.has_tls else None
        return "" if material is None else material.certificate.subject

    def _key_material(self) -> KeyMaterial | None:
        from logflume.log.security import load_key_material

        store = self.settings.get("ssl.keystore.location")
        chain, key = self.settings.get("ssl.certificate.location"), self.settings.get("ssl.key.location")
        if store:
            return load_key_material(location=store, password=self.secret("ssl.keystore.password"), what="ssl.keystore")
        if not chain and not key:
            return None
        if not chain or not key:
            raise InvalidInput("ssl.certificate.location and ssl.key.location go together; one is missing")
        chain_text, key_text = _from_file(chain, "ssl.certificate.location"), _from_file(key, "ssl.key.location")
        return load_key_material(
            chain_text=chain_text, key_text=key_text, key_password=self.secret("ssl.key.password"), what="ssl.certificate"
        )

    def _check_sasl(self) -> None:
        _check_choice("sasl.mechanism", self.mechanism, MECHANISMS)
        names = {name.rpartition(".")[0] if name.rpartition(".")[2] in SOURCES else name for name in self.settings}
        if self.mechanism == "GSSAPI":
            if find_spec("gssapi") is None:
                raise InvalidInput("sasl.mechanism=GSSAPI needs MIT Kerberos and gssapi: pip install 'logflume[gssapi]'")
        elif self.mechanism != "OAUTHBEARER":
            missing = [name for name in ("sasl.username", "sasl.password") if name not in names]
            if missing:
                raise InvalidInput(f"sasl.mechanism={self.mechanism} needs {' and '.join(missing)}")
        elif self.token is None and not {"sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url"} & names:
            raise InvalidInput(
                "sasl.mechanism=OAUTHBEARER needs a token callback, sasl.oauthbearer.token.file or a token endpoint"
            )


def settings_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among environment variables: LOGFLUME_SASL_PASSWORD_FILE is `sasl.password.file`.

    >>> settings_of_environment({"LOGFLUME_SECURITY_PROTOCOL": "SSL", "LOGFLUME_DATA": "x"})
    {'security.protocol': 'SSL'}
    """
    known = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in _all_names()}
    return {known[name]: value for name, value in environment.items() if name in known}


def _all_names() -> list[str]:
    return [*SETTINGS, *(f"{secret}.{source}" for secret in SECRETS for source in SOURCES)]


def _check_name(name: str) -> None:
    if name not in _all_names():
        raise UnknownName("security setting", name, _all_names())


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(f"{name} expects {', '.join(each.upper() for each in choices)}, found {value[:50]!r}")


def _from_file(where: str, name: str) -> str:
    try:
        with Path(where).expanduser().open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
        if len(raw) > MAX_SECRET_BYTES:
            raise InvalidInput(f"{name}: {where} has more than {MAX_SECRET_BYTES} bytes")
        return raw.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidInput(f"{name}: cannot read {where}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{name}: {where} is not UTF-8 text") from None


def _from_environment(where: str, name: str) -> str:
    value = os.environ.get(where)
    if value is None:
        raise InvalidInput(f"{name}: the environment variable {where} is not set")
    return value


def _from_keyring(where: str, name: str) -> str:
    service, slash, user = where.rpartition("/")
    if not slash:
        raise InvalidInput(f"{name} expects SERVICE/USER, found {where[:100]!r}")
    try:
        import keyring
    except ModuleNotFoundError:
        raise InvalidInput(f"{name} needs the package keyring: pip install keyring") from None
    value = keyring.get_password(service, user)
    if value is None:
        raise InvalidInput(f"{name}: the keyring has no password of {user!r} for {service!r}")
    return str(value)
