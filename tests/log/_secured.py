"""A broker with every kind of listener, its authority, and settings of clients for each, in the names of librdkafka."""

import hashlib
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from logflume.log.protocol import messages
from logflume.log.security.issuing import Issued, issue, make_authority
from logflume.log.server import EmbeddedBroker, start_embedded
from logflume.log.server.addresses import parse_address

PASSWORDS = {"admin": "admin-secret-5b1c", "alice": "alice-secret-91ff", "bob": "bob, secret=3e07"}
NOW = datetime.now(UTC)
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SHA_256, SHA_512 = 1, 2


class Secured:
    """Ports by listener name; files of an authority, the server and the clients."""

    def __init__(self, directory: Path, **configs: str) -> None:
        self.directory = directory
        self.authority = make_authority("Test authority", now=NOW)
        self.authority_path = self.write("ca.pem", self.authority.certificate_pem)
        self.server_path = self.write_pair("server.pem", self.issue("broker", hosts=["127.0.0.1", "localhost"], is_server=True))
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "ssl.keystore.location": self.server_path,
            "ssl.truststore.location": self.authority_path,
            "ssl.client.auth": "requested",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "connection.failed.authentication.delay.ms": "20",
        }
        self.broker: EmbeddedBroker = start_embedded(str(directory / "data"), configs=settings | configs)
        self.ports = {name: address.port for name, address in zip(LISTENERS, self.broker.addresses, strict=False)}
        for user, password in PASSWORDS.items():
            self.set_user(user, password)

    def issue(self, name: str, **options: Any) -> Issued:
        return issue(self.authority, name, now=options.pop("now", NOW), **options)

    def write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)

    def write_pair(self, name: str, issued: Issued) -> str:
        """Write key and certificate to one file, as Kafka's PEM stores have them."""
        return self.write(name, issued.key_pem + issued.certificate_pem)

    def set_user(self, user: str, password: str | None) -> None:
        """Give a user a password for both SCRAM mechanisms, or delete him."""
        request = messages.AlterUserScramCredentialsRequest
        for mechanism, hash_name in ((SHA_256, "sha256"), (SHA_512, "sha512")):
            message = request()
            if password is None:
                message.deletions = [request.ScramCredentialDeletion(name=user, mechanism=mechanism)]
            else:
                salt = os.urandom(16)
                salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, 4096)
                message.upsertions = [
                    request.ScramCredentialUpsertion(
                        name=user, mechanism=mechanism, iterations=4096, salt=salt, salted_password=salted
                    )
                ]
            (result,) = self.broker.submit("AlterUserScramCredentials", 0, message).result(10).results
            assert result.error_code == 0, result

    def client(
        self, protocol: str, *, mechanism: str = "SCRAM-SHA-512", user: str = "alice", password: str = ""
    ) -> dict[str, str]:
        """Return the settings of a client of a listener."""
        settings = {"bootstrap.servers": f"127.0.0.1:{self.ports[protocol]}", "security.protocol": protocol}
        if "SSL" in protocol:
            settings["ssl.ca.location"] = self.authority_path
        if "SASL" in protocol:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or PASSWORDS[user]}
        return settings

    def close(self) -> None:
        self.broker.close()


def expired(authority: Issued) -> Issued:
    """Return a client certificate that ended yesterday."""
    return issue(authority, "late", now=NOW - timedelta(days=30), days=29)


def address_of(port: int) -> Any:
    return parse_address(f"127.0.0.1:{port}")


def revoke(directory: Path, authority: Issued | None, issued: Issued | None) -> str:
    """Write the list of what an authority (None: a strange one) has revoked; return its path."""
    authority = authority or make_authority("Nobody", now=NOW)
    key: Any = load_pem_private_key(authority.key_pem, None)
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem).subject
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(NOW - timedelta(hours=1))
    builder = builder.next_update(NOW + timedelta(days=1))
    if issued is not None:
        serial = x509.load_pem_x509_certificate(issued.certificate_pem).serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW).build()
        builder = builder.add_revoked_certificate(revoked)
    path = directory / "revoked.pem"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return str(path)
