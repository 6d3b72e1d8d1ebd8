"""TLS of listeners: who is let in by a certificate, who is not, and what the server shows."""

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.security import PrincipalRules
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput
from logflume.log.protocol import ErrorCode, messages
from logflume.log.security import client_context, describe_certificates, load_key_material
from logflume.log.security.issuing import Issued, make_authority
from logflume.log.server.__main__ import raise_file_limit
from logflume.log.server.tls import ListenerTls

from ._secured import NOW, Secured, expired, revoke
from ._wire import Wire

RULES = "RULE:^CN=(client-[a-z]+)$/$1/L,DEFAULT"
DAY_S = 86_400


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    configs = {
        "ssl.principal.mapping.rules": RULES,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:client-admin",
        "logflume.login.timeout.ms": "1500",
        "logflume.http.listener": "127.0.0.1:0",
    }
    started = Secured(directory, **configs)
    yield started
    started.close()


class TlsWire(Wire):
    """Raw frames over TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self.sock = context.wrap_socket(self.sock, server_hostname="127.0.0.1")


def context_of(secured: Secured, issued: Issued | None = None, **options: Any) -> ssl.SSLContext:
    material = load_key_material(location=secured.write_pair("client.pem", issued)) if issued else None
    return client_context(trust_pem=secured.authority.certificate_pem, material=material, **options)


def may_create_topic(wire: Wire, name: str) -> bool:
    topic = messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = wire.call(messages.CreateTopicsRequest(topics=[topic]), 7).topics
    assert result.error_code in (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return bool(result.error_code == 0)


def test_the_subject_of_a_certificate_is_the_principal(secured: Secured, topic: str) -> None:
    port = secured.ports["SSL"]
    with TlsWire(port, context_of(secured, secured.issue("client-admin"))) as wire:
        assert may_create_topic(wire, topic)
    with TlsWire(port, context_of(secured, secured.issue("client-other"))) as wire:
        assert not may_create_topic(wire, topic + "2")
    with TlsWire(port, context_of(secured)) as wire:
        assert not may_create_topic(wire, topic + "2")


def test_certificates_that_are_not_good_are_refused(secured: Secured) -> None:
    stranger = make_authority("Stranger", now=NOW)
    for issued in (expired(secured.authority), stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)), TlsWire(secured.ports["SSL"], context_of(secured, issued)) as wire:
            wire.call(messages.ApiVersionsRequest(), 0)


def test_a_client_refuses_a_server_that_is_not_the_one(secured: Secured) -> None:
    port, other = secured.ports["SSL"], make_authority("Other", now=NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed certificate|unable to get local issuer"):
        TlsWire(port, client_context(trust_pem=other.certificate_pem))
    sock, mismatch = (
        socket.create_connection(("127.0.0.1", port), timeout=10),
        pytest.raises(ssl.SSLError, match="Hostname mismatch"),
    )
    with sock, mismatch:
        context_of(secured).wrap_socket(sock, server_hostname="elsewhere.example")


@pytest.mark.parametrize(("version", "has_ticket"), [("TLSv1.2", True), ("TLSv1.3", False)])
def test_sessions_are_taken_up_again_where_that_saves_work(secured: Secured, version: str, has_ticket: bool) -> None:
    """Each session of TLS 1.3 is a new one, so that each certificate is looked at; tickets would cost more than they save."""
    with TlsWire(secured.ports["SSL"], context_of(secured, secured.issue("client-a"), versions=[version])) as wire:
        assert wire.call(messages.ApiVersionsRequest(), 0).error_code == 0
        assert isinstance(wire.sock, ssl.SSLSocket)
        session = wire.sock.session
        assert bool(session and session.has_ticket) is has_ticket


def test_old_versions_and_weak_ciphers_are_refused(secured: Secured) -> None:
    context = context_of(secured)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        TlsWire(secured.ports["SSL"], context)
    weak = context_of(secured)
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        TlsWire(secured.ports["SSL"], weak)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command asks for renegotiation; Python cannot")
def test_nobody_renegotiates(secured: Secured) -> None:
    """A client that asks for a new handshake under way (CVE-2009-3555, CVE-2011-1473) is told no; another is served as before."""
    port = secured.ports["SSL"]
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-CAfile", secured.authority_path]
    asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert asking.stdin is not None
    assert asking.stdout is not None
    try:
        told = read_to(asking.stdout, "Verify return code: 0")
        asking.stdin.write("R\n")
        asking.stdin.flush()
        told += read_to(asking.stdout, "no renegotiation")
    finally:
        asking.kill()
        asking.communicate()
    assert told.count("RENEGOTIATING") == 1
    with TlsWire(port, context_of(secured)) as other:
        assert other.call(messages.ApiVersionsRequest(), 0).error_code == 0


def read_to(lines: Iterable[str], end: str) -> str:
    """Return the lines up to the one with an end in it."""
    told = ""
    for line in lines:
        told += line
        if end in line:
            return told
    raise AssertionError(f"no {end!r} in {told}")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_one_byte_at_a_time_and_many_at_once(secured: Secured, version: ssl.TLSVersion) -> None:
    context = context_of(secured, secured.issue("client-admin"))
    context.minimum_version = context.maximum_version = version
    with TlsWire(secured.ports["SSL"], context) as wire:
        one = Recorder()
        one.send(messages.ApiVersionsRequest(), 0)
        for byte in one.sent:
            wire.sock.sendall(bytes([byte]))
        assert wire.receive(messages.ApiVersionsRequest, 0)[0] == 1
        many = b"".join(request_bytes(number) for number in range(3000))  # more than one turn takes
        wire.sock.sendall(many)
        assert [wire.receive(messages.ApiVersionsRequest, 0)[0] for _ in range(3000)] == list(range(3000))


class Recorder(Wire):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent = b""

        class Sink:
            sendall = staticmethod(lambda data: setattr(self, "sent", self.sent + data))

        self.sock = Sink()  # type: ignore[assignment]


def request_bytes(correlation_id: int) -> bytes:
    recorder = Recorder()
    recorder.send(messages.ApiVersionsRequest(), 0, correlation_id=correlation_id)
    return recorder.sent


def test_half_a_handshake_is_ended_and_counted(secured: Secured) -> None:
    sockets = [socket.create_connection(("127.0.0.1", secured.ports["SSL"]), timeout=20) for _ in range(50)]
    for sock in sockets[::2]:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    for sock in sockets:
        assert sock.recv(1) == b""
        sock.close()


def test_plain_text_on_a_tls_listener_and_the_other_way_round(secured: Secured) -> None:
    with Wire(secured.ports["SSL"]) as wire:
        wire.send(messages.ApiVersionsRequest(), 0)
        assert wire.is_closed_by_broker()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsWire(secured.ports["PLAINTEXT"], context_of(secured))


def settings_of(**configs: str) -> ListenerSettings:
    return ListenerSettings(BrokerConfig({name.replace("_", "."): value for name, value in configs.items()}), "SSL", "SSL")


def pkcs12_of(issued: Issued, password: bytes) -> bytes:
    key: Any = load_pem_private_key(issued.key_pem, None)
    certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
    return pkcs12.serialize_key_and_certificates(b"k", key, certificate, None, BestAvailableEncryption(password))


def test_stores_in_every_form(secured: Secured) -> None:
    issued = secured.issue("broker", hosts=["localhost"], is_server=True)
    key: Any = load_pem_private_key(issued.key_pem, None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"key-pw"))
    p12 = secured.write("s.p12", pkcs12_of(issued, b"store-pw"))
    one_line = {
        "ssl_keystore_key": locked.decode().replace("\n", " "),
        "ssl_keystore_certificate_chain": issued.certificate_pem.decode().replace("\n", " "),
    }
    forms: list[dict[str, str]] = [
        {"ssl_keystore_location": secured.write_pair("s.pem", issued), "ssl_keystore_type": "PEM"},
        {"ssl_keystore_location": p12, "ssl_keystore_password": "store-pw"},
        {"ssl_keystore_location": p12, "ssl_keystore_password": "store-pw", "ssl_keystore_type": "PKCS12"},
        {**one_line, "ssl_key_password": "key-pw"},
    ]
    for form in forms:
        tls = ListenerTls(settings_of(**form))
        assert (tls.certificate.subject, tls.certificate.names) == ("CN=broker", ("localhost",))


def wrong_stores(secured: Secured) -> list[tuple[dict[str, str], str]]:
    issued, other = secured.issue("a"), secured.issue("b")
    key: Any = load_pem_private_key(issued.key_pem, None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"key-pw"))
    write = secured.write
    good, p12 = secured.write_pair("good.pem", issued), write("w.p12", pkcs12_of(issued, b"right"))
    return [
        ({}, "neither is set"),
        ({"ssl_keystore_location": "/nowhere/a.pem"}, "cannot be read: No such file"),
        ({"ssl_keystore_location": write("w.jks", b"\xfe\xed\xfe\xed" + bytes(100))}, "keytool -importkeystore"),
        ({"ssl_keystore_location": write("w.txt", b"hello")}, "neither PEM nor PKCS12"),
        ({"ssl_keystore_location": write("w0", b"")}, "has 0 bytes"),
        (
            {"ssl_keystore_location": good, "ssl_keystore_type": "PKCS12"},
            "is PEM, and",
        ),
        ({"ssl_keystore_location": good, "ssl_keystore_type": "BCFKS"}, "expects PEM, PKCS12, JKS"),
        ({"ssl_keystore_location": p12, "ssl_keystore_password": "hunter2"}, "a wrong password, or a damaged file"),
        ({"ssl_keystore_location": write("w1.pem", issued.certificate_pem)}, "expected one private key"),
        ({"ssl_keystore_location": write("w2.pem", issued.key_pem)}, "there is no certificate"),
        (
            {"ssl_keystore_location": write("w3.pem", issued.key_pem + other.certificate_pem)},
            "does not match the first",
        ),
        ({"ssl_keystore_location": write("w4.pem", locked + issued.certificate_pem)}, "set ssl.key.password"),
        (
            {"ssl_keystore_location": write("w5.pem", locked + issued.certificate_pem), "ssl_key_password": "hunter2"},
            "ssl.key.password is not that of the private key",
        ),
        ({"ssl_keystore_location": good, "ssl_client_auth": "required"}, "set ssl.truststore.location"),
        ({"ssl_keystore_location": good, "ssl_enabled_protocols": "TLSv1.1"}, "expects TLSv1.2 or TLSv1.3"),
        ({"ssl_keystore_location": good, "ssl_cipher_suites": "TLS_RSA_WITH_NULL"}, "none of TLS_RSA_WITH_NULL is known"),
        ({"ssl_keystore_location": good, "ssl_principal_mapping_rules": "RULE:(/x/"}, "is no pattern"),
        ({"ssl_keystore_location": good, "ssl_principal_mapping_rules": "CN=x"}, "expected DEFAULT or RULE"),
        ({"ssl_keystore_location": good, "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$2/"}, "names group 2, of 1"),
        ({"ssl_keystore_location": good, "logflume_ssl_crl_location": good}, "has no list of revoked certificates"),
    ]


def test_stores_that_do_not_fit_are_refused_without_a_secret(secured: Secured) -> None:
    for configs, says in wrong_stores(secured):
        with pytest.raises(InvalidInput) as caught:
            ListenerTls(settings_of(**configs))
        assert says in str(caught.value), configs
        assert "hunter2" not in str(caught.value)


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(secured: Secured) -> None:
    path = secured.write_pair("renewed.pem", secured.issue("old", days=20))
    tls = ListenerTls(settings_of(ssl_keystore_location=path))
    tls.refresh(NOW.timestamp())
    secured.write_pair("renewed.pem", secured.issue("new"))
    tls.refresh(NOW.timestamp())
    assert (tls.certificate.subject, tls.reloads) == ("CN=new", 1)
    secured.write("renewed.pem", b"-----BEGIN rubbish")
    tls.refresh(NOW.timestamp())
    tls.refresh(NOW.timestamp())
    assert (tls.certificate.subject, tls.reloads, tls.failed_reloads) == ("CN=new", 1, 1)


def test_the_end_of_a_certificate_is_told_of_30_days_before_once_a_day(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    path = secured.write_pair("ending.pem", secured.issue("ending", days=40))
    tls = ListenerTls(settings_of(ssl_keystore_location=path))

    def lines_after(days: float) -> int:
        caplog.clear()
        tls.refresh(NOW.timestamp() + days * DAY_S)
        return sum(record.name == "logflume.tls" for record in caplog.records)  # the fixture's broker has lines of its own

    assert [lines_after(days) for days in (0, 9, 11, 11, 12, 41)] == [0, 0, 1, 0, 1, 1]
    assert "has ended on" in caplog.text


def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    secured = Secured(tmp_path, **{"ssl.client.auth": "required", "logflume.ssl.crl.location": revoke(tmp_path, None, None)})
    try:
        good, bad = secured.issue("good"), secured.issue("bad")
    finally:
        secured.close()
    crl = revoke(tmp_path, secured.authority, bad)
    settings = {"ssl.keystore.location": secured.server_path, "ssl.truststore.location": secured.authority_path}
    tls = ListenerTls(
        ListenerSettings(
            BrokerConfig({**settings, "ssl.client.auth": "required", "logflume.ssl.crl.location": crl}), "SSL", "SSL"
        )
    )
    assert handshake(tls, context_of(secured, good)) is None
    assert "revoked" in str(handshake(tls, context_of(secured, bad)))


def handshake(tls: ListenerTls, client: ssl.SSLContext) -> Exception | None:
    """Return what the server's side of a handshake in memory raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    other = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None


def test_subjects_are_written_as_java_does() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID as Oid

    parts = [
        (Oid.COUNTRY_NAME, "DE"),
        (Oid.ORGANIZATION_NAME, 'A, "B"; <C>'),
        (Oid.COMMON_NAME, " x+y#"),
        (Oid.EMAIL_ADDRESS, "a@b"),
    ]
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    raw = builder.not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1)).sign(key, hashes.SHA256())
    (shown,) = describe_certificates(raw.public_bytes(Encoding.DER), where="test")
    assert shown.subject == '1.2.840.113549.1.9.1=#1603614062,CN=\\ x\\+y#,O=A\\, \\"B\\"\\; \\<C\\>,C=DE'


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "CN=Al,OU=ServiceUsers,O=x", "Al"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "CN=Al,OU=Web,O=x", "al@web"),
        ("RULE:^CN=(.*?)$/$1/U", "CN=al", "AL"),
        ("RULE:^CN=(.*?)$/$1/U", "O=al", None),
        (r"RULE:^CN=a\/b$/x\/y/", "CN=a/b", "x/y"),
    ],
)
def test_principal_rules(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalRules(rules).name(subject) == name


@given(st.text(max_size=60))
def test_rules_parse_or_are_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        PrincipalRules(text).name("CN=a")


def test_metrics_tell_of_handshakes_logins_and_of_the_certificate_s_end(secured: Secured) -> None:
    import urllib.request

    with TlsWire(secured.ports["SSL"], context_of(secured)) as wire:
        wire.call(messages.ApiVersionsRequest(), 0)
    with Wire(secured.ports["SASL_PLAINTEXT"]) as wire:
        assert wire.call(messages.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        refused = wire.call(messages.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    url = f"http://{secured.broker._shell.http_address}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    assert 'logflume_tls_handshakes_total{outcome="ok"}' in text
    assert 'logflume_logins_total{mechanism="PLAIN",outcome="failed"} 1.0' in text
    line = next(line for line in text.splitlines() if line.startswith('logflume_certificate_expiry_seconds{listener="SSL"}'))
    assert 396 * DAY_S < float(line.split()[-1]) < 398 * DAY_S


def test_a_thousand_half_open_handshakes_do_not_keep_a_client_from_its_answers(secured: Secured) -> None:
    """Every request of a client that is connected is answered while a thousand strangers begin handshakes and go no further."""
    raise_file_limit()
    port, hello = secured.ports["SSL"], client_hello()
    with TlsWire(port, context_of(secured)) as healthy:
        strangers = []
        for number in range(1000):
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            sock.sendall(hello[: len(hello) // 2] if number % 2 else hello)  # half of a greeting, or a handshake left alone
            strangers.append(sock)
            if number % 50 == 0:
                assert healthy.call(messages.ApiVersionsRequest(), 0).error_code == 0
        for sock in strangers:
            sock.settimeout(20)
            # The broker's half of the handshake, then the end, a reset if it had not read all yet: none is kept open for long.
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
            sock.close()
        assert healthy.call(messages.ApiVersionsRequest(), 0).error_code == 0
    with TlsWire(port, context_of(secured)) as late:
        assert late.call(messages.ApiVersionsRequest(), 0).error_code == 0


def client_hello() -> bytes:
    """Return the first bytes that a client of TLS sends."""
    to_server = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    side = context.wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return to_server.read()
