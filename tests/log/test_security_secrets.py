"""Secrets are searched for wherever broker and clients say a thing: logs, errors, metrics, settings, reprs, processes, files."""

import base64
import contextlib
import logging
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from logflume.log import Security, connect
from logflume.log.access import set_password
from logflume.log.errors import LogflumeError
from logflume.log.protocol import messages
from logflume.log.security.issuing import Issued, issue, make_authority

from ._secured import NOW
from ._wire import Wire

SECRETS = {
    "of the key": "key-secret-77ab",
    "in the settings": "settings-secret-15cd",
    "of a user": "user-secret-93ef",
    "that is wrong": "wrong-secret-20bb",
    "of tokens": "token-secret-41aa",
}
JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


START = (
    "import logging; logging.getLogger('logflume').setLevel(logging.DEBUG); from logflume.log.server.__main__ import main; main()"
)
"""A broker that logs all that it can."""


def pkcs12(issued: Issued) -> bytes:
    key = load_pem_private_key(issued.key_pem, None)
    certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
    password = SECRETS["of the key"].encode()
    return serialize_key_and_certificates(b"broker", key, certificate, None, BestAvailableEncryption(password))  # type: ignore[arg-type]


class Place:
    """A broker in a process of its own, as an administrator would start it, whose every word is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = make_authority("Authority", now=NOW)
        (directory / "ca.pem").write_bytes(authority.certificate_pem)
        issued = issue(authority, "broker", now=NOW, hosts=["127.0.0.1"], is_server=True)
        (directory / "server.p12").write_bytes(pkcs12(issued))
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        (directory / "broker.properties").write_text(
            "listeners=SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0\n"
            f"ssl.keystore.location={directory}/server.p12\n"
            f"ssl.keystore.password={SECRETS['of the key']}\n"
            "ssl.keystore.type=PKCS12\n"
            f'listener.name.sasl_ssl.plain.sasl.jaas.config={module} required user_kept="{SECRETS["in the settings"]}";\n'
            f"sasl.enabled.mechanisms={','.join(MECHANISMS)}\n"
            f"delegation.token.secret.key={SECRETS['of tokens']}\n"
            f"logflume.audit.log={directory}/audit.log\n"
            "logflume.http.listener=127.0.0.1:0\n"
            "connection.failed.authentication.delay.ms=0\n"
        )
        self.output = directory / "output"
        command = [sys.executable, "-c", START, "--data", str(directory / "data"), "--log-format", "json"]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--config-file", str(directory / "broker.properties")], stdout=out, stderr=out
            )
        ready = self._ready()
        self.tls_port, self.port = (
            int(part.rpartition(":")[2]) for part in ready.split(" on ")[1].split("; ")[0].split(", ")[:2]
        )
        self.pages = ready.rpartition("metrics on ")[2].strip()

    def _ready(self) -> str:
        while True:
            lines = [line for line in self.output.read_text().splitlines() if line.startswith("logflume broker ready")]
            if lines:
                return lines[0]
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.01)

    def client(self, mechanism: str, user: str, password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password,
            "ssl.ca.location": str(self.directory / "ca.pem"),
        }  # fmt: skip

    def say_all(self) -> str:
        """Return what the broker says of itself: its pages, settings, users, groups, as text."""
        pages = [
            urllib.request.urlopen(f"{self.pages.rpartition('/')[0]}/{page}").read().decode() for page in ("metrics", "readyz")
        ]
        request = messages.DescribeConfigsRequest(include_synonyms=True, include_documentation=True)
        request.resources = [
            messages.DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        ]
        with Wire(self.port) as wire:
            described = wire.call(request, 4)
            users = wire.call(messages.DescribeUserScramCredentialsRequest(users=None), 0)
        assert described.results[0].configs
        return "\n".join([*pages, repr(shown(described)), repr(shown(users))])


def shown(value: Any) -> Any:
    """Return a response as plain values."""
    if isinstance(value, list):
        return [shown(each) for each in value]
    if hasattr(type(value), "__slots__") and not isinstance(value, bytes | str | int):
        return {name: shown(getattr(value, name)) for name in type(value).__slots__}
    return value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("secrets"))
    yield made
    made.process.terminate()
    assert made.process.wait(30) == 0


def forms() -> list[bytes]:
    """Return the secrets as they might be written: as they are, in base64, as tokens of PLAIN are."""
    plain = [secret.encode() for secret in SECRETS.values()] + [JWT.encode()]
    return [
        form
        for secret in plain
        for form in (secret, base64.b64encode(secret), repr(secret).encode()[2:-1], secret.hex().encode())
    ]


def find(where: str, text: bytes) -> None:
    found = [form for form in forms() if form in text]
    assert not found, f"{found[0]!r} in {where}"


def test_no_secret_is_told_by_anything(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    address, told = f"127.0.0.1:{place.tls_port}", []
    with connect(f"127.0.0.1:{place.port}") as log:
        set_password(log.admin(), "alice", SECRETS["of a user"])
    for mechanism in MECHANISMS:
        for user, which in (("alice", "of a user"), ("alice", "that is wrong"), ("kept", "in the settings")):
            settings = place.client(mechanism, user, SECRETS[which])
            security = Security.from_settings(settings)
            told += [repr(security), str(security)]
            with contextlib.suppress(LogflumeError):
                try:
                    with connect(address, security=security) as log:
                        log.producer().send("t", b"v").result(20)
                        told += [repr(log), repr(log.producer()), repr(log.admin())]
                except LogflumeError as error:
                    told += [repr(error), str(error)]
                    raise
    told += foreign(place, address)
    settings = place.client("OAUTHBEARER", "", "") | {"sasl.oauthbearer.token": JWT}
    del settings["sasl.username"], settings["sasl.password"]
    with pytest.raises(LogflumeError) as caught:
        connect(address, security=Security.from_settings(settings))
    told += [repr(caught.value), str(caught.value), repr(Security.from_settings(settings))]
    find("what clients were told", "\n".join(told).encode())
    find("logs of clients", caplog.text.encode())
    find("metrics, settings, users", place.say_all().encode())
    find("the broker's log", place.output.read_bytes())
    find("the audit log", (place.directory / "audit.log").read_bytes())
    assert "alice" in place.output.read_text(), "the log was on"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            find(str(path), path.read_bytes())
    for path in (place.directory / "data").rglob("*"):
        if path.is_file():
            find(str(path), path.read_bytes())


def foreign(place: Place, address: str) -> list[str]:
    """Return what confluent-kafka was told about a wrong password."""
    errors: list[str] = []
    settings: dict[str, Any] = place.client("PLAIN", "alice", SECRETS["that is wrong"]) | {"bootstrap.servers": address}
    producer = Producer({**settings, "error_cb": lambda error: errors.append(str(error)), "log_level": 0})
    while not errors:
        producer.poll(0.1)
    return errors
