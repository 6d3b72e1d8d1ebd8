"""Keys and certificates as Kafka's settings name them: PEM files or text, and PKCS12 files.

Files are bounded, and told apart by what is in them: a store of the wrong type, a wrong password, a key that does not fit its
certificate are each an error with the file's name, and never with what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logflume.log.errors import InvalidInput
from logflume.log.extras import require

if TYPE_CHECKING:
    from cryptography.x509 import Certificate as X509

MAX_STORE_BYTES = 4 << 20
MAX_CERTIFICATES = 1000
TYPES = ("PEM", "PKCS12", "JKS")
_JKS_MAGIC, _JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_BEGIN = b"-----BEGIN "
_KNOWN_NAMES = {"CN", "L", "ST", "O", "OU", "C", "STREET", "DC", "UID"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate as it is shown. `subject` and `issuer` as RFC 2253 writes them, `names`: hosts and addresses it is for."""

    subject: str
    issuer: str
    serial: int
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...]

    def expires_in_s(self, now_s: float) -> float:
        return self.not_after.timestamp() - now_s


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """A private key (PEM, not encrypted) with its certificate chain (PEM), and what the first certificate says."""

    key_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    certificate: Certificate


def load_key_material(
    *,
    location: str = "",
    store_type: str = "",
    password: str = "",
    key_password: str = "",
    chain_text: str = "",
    key_text: str = "",
    what: str = "ssl.keystore",
) -> KeyMaterial:
    """Return key and chain of a store, or of the texts given in its place.

    Args:
        location: a file; `chain_text` and `key_text`: PEM text instead of one.
        store_type: PEM, PKCS12 or empty (or JKS, Kafka's default) for what the file is.
        password: of a PKCS12 file; `key_password`: of an encrypted key in PEM.
        what: the prefix of the settings, for errors.

    Raises InvalidInput.
    """
    require("cryptography", extra="tls", what=what)
    if location:
        raw = _read(location, what)
        if _type_of(raw, store_type, location, what) == "PKCS12":
            key, chain = _from_pkcs12(raw, password, location, what)
        else:
            key, chain = _key_of_pem(raw, key_password or password, location, what), _certificates_of_pem(raw, location, what)
    elif chain_text and key_text:
        chain = _certificates_of_pem(_pem_text(chain_text), "the text", what)
        key = _key_of_pem(_pem_text(key_text), key_password, "the text", what)
    else:
        raise InvalidInput(f"{what}: expected {what}.location, or {what}.certificate.chain with {what}.key; neither is set")
    return _material(key, chain, location or "the text", what)


def load_trust(
    *, location: str = "", store_type: str = "", password: str = "", text: str = "", what: str = "ssl.truststore"
) -> bytes:
    """Return the certificates of authorities, as PEM; empty if no store is named. Raises InvalidInput."""
    if location or text:
        require("cryptography", extra="tls", what=what)
    if location:
        raw = _read(location, what)
        if _type_of(raw, store_type, location, what) == "PKCS12":
            from cryptography.hazmat.primitives.serialization import pkcs12

            try:
                store = pkcs12.load_pkcs12(raw, password.encode() or None)
            except ValueError:
                raise _cannot_open(location, what) from None
            certificates = [each.certificate for each in (*store.additional_certs, *((store.cert,) if store.cert else ()))]
        else:
            certificates = _certificates_of_pem(raw, location, what)
    elif text:
        certificates = _certificates_of_pem(_pem_text(text), "the text", what)
    else:
        return b""
    if not certificates:
        raise InvalidInput(f"{what}: there is no certificate in {location or 'the text'}")
    return _to_pem(certificates)


def describe_certificates(raw: bytes, *, where: str) -> list[Certificate]:
    """Return what the certificates of PEM text, or one as DER, say. Raises InvalidInput."""
    require("cryptography", extra="tls", what="TLS")
    if raw.startswith(b"\x30"):
        from cryptography import x509

        try:
            return [_describe(x509.load_der_x509_certificate(raw))]
        except ValueError:
            raise InvalidInput(f"{where} is no certificate") from None
    return [_describe(each) for each in _certificates_of_pem(raw, where, "certificate")]


def _read(location: str, what: str) -> bytes:
    try:
        with Path(location).open("rb") as file:
            raw = file.read(MAX_STORE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{what}.location {location} cannot be read: {error.strerror or error}") from None
    if not raw or len(raw) > MAX_STORE_BYTES:
        raise InvalidInput(f"{what}.location {location} has {len(raw)} bytes; expected 1 to {MAX_STORE_BYTES}")
    return raw


def _type_of(raw: bytes, store_type: str, location: str, what: str) -> str:
    """Return PEM or PKCS12: what the file is, if that is what it should be."""
    asked = store_type.upper() or "JKS"
    if asked not in TYPES:
        raise InvalidInput(f"{what}.type expects {', '.join(TYPES)}, found {store_type[:50]!r}")
    if raw[:4] in (_JKS_MAGIC, _JCEKS_MAGIC):
        raise InvalidInput(
            f"{what}.location {location} is a Java keystore (JKS), which only Java reads; convert it: keytool -importkeystore "
            f"-srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12"
        )
    found = "PEM" if b"-----BEGIN " in raw else "PKCS12" if raw[:1] == b"\x30" else ""
    if not found:
        raise InvalidInput(f"{what}.location {location} is neither PEM nor PKCS12")
    if asked not in ("JKS", found):
        raise InvalidInput(f"{what}.location {location} is {found}, and {what}.type says {asked}; set {what}.type={found}")
    return found


def _from_pkcs12(raw: bytes, password: str, location: str, what: str) -> tuple[Any, list[X509]]:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        key, certificate, more = pkcs12.load_key_and_certificates(raw, password.encode() or None)
    except ValueError:
        raise _cannot_open(location, what) from None
    if key is None or certificate is None:
        raise InvalidInput(f"{what}.location {location} has no private key with a certificate; a truststore is no keystore")
    return key, [certificate, *more]


def _cannot_open(location: str, what: str) -> InvalidInput:
    return InvalidInput(f"{what}.location {location} cannot be opened with {what}.password: a wrong password, or a damaged file")


def _pem_text(text: str) -> bytes:
    """Return PEM text whose line breaks may have been lost in a properties file."""
    return text.replace("\\n", "\n").encode()


def _blocks(raw: bytes, location: str, what: str) -> list[tuple[str, bytes]]:
    """Return (label, block) of each part of PEM text."""
    found: list[tuple[str, bytes]] = []
    position = raw.find(_BEGIN)
    while position >= 0:
        label = raw[position + len(_BEGIN) : position + 60].partition(b"-----")[0]
        mark = b"-----END " + label + b"-----"
        end = raw.find(mark, position)
        if end < 0 or len(found) >= MAX_CERTIFICATES:
            raise InvalidInput(f"{what}: {location} ends within a part, or has more than {MAX_CERTIFICATES}")
        found.append((label.decode("ascii", "replace"), raw[position : end + len(mark)] + b"\n"))
        position = raw.find(_BEGIN, end)
    return found


def _certificates_of_pem(raw: bytes, location: str, what: str) -> list[X509]:
    from cryptography import x509

    certificates = []
    for label, block in _blocks(raw, location, what):
        if label == "CERTIFICATE":
            try:
                certificates.append(x509.load_pem_x509_certificate(_rewrapped(block)))
            except ValueError:
                raise InvalidInput(f"{what}: a certificate in {location} cannot be read") from None
    if not certificates:
        raise InvalidInput(f"{what}: there is no certificate in {location}")
    return certificates


def _rewrapped(block: bytes) -> bytes:
    """Return a block with line breaks, which text out of a properties file has lost."""
    head, _, rest = block.removeprefix(b"-----").partition(b"-----")
    body, _, _ = rest.partition(b"-----")
    if b"\n" in body.strip():
        return block
    label, text = head.removeprefix(b"BEGIN "), b"".join(body.split())
    lines = b"\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    return b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label, lines, label)


def _key_of_pem(raw: bytes, password: str, location: str, what: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    keys = [(label, block) for label, block in _blocks(raw, location, what) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise InvalidInput(f"{what}: expected one private key in {location}, found {len(keys)}")
    label, block = keys[0]
    is_encrypted = label.startswith("ENCRYPTED") or b"ENCRYPTED" in block
    if is_encrypted and not password:
        raise InvalidInput(f"{what}: the private key in {location} is encrypted; set ssl.key.password")
    try:
        return load_pem_private_key(_rewrapped(block), password.encode() if is_encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        cause = "ssl.key.password is not that of the private key" if is_encrypted else "the private key cannot be read"
        raise InvalidInput(f"{what}: {cause} in {location}") from None


def _material(key: Any, chain: Sequence[X509], location: str, what: str) -> KeyMaterial:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*spki) != chain[0].public_key().public_bytes(*spki):
        raise InvalidInput(
            f"{what}: the private key in {location} does not match the first certificate, {_name(chain[0].subject)}"
        )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyMaterial(key_pem, _to_pem(chain), _describe(chain[0]))


def _to_pem(certificates: Sequence[X509]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _describe(certificate: X509) -> Certificate:
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = tuple(map(str, (*extension.get_values_for_type(x509.DNSName), *extension.get_values_for_type(x509.IPAddress))))
    except (x509.ExtensionNotFound, ValueError):
        names = ()
    return Certificate(
        _name(certificate.subject),
        _name(certificate.issuer),
        certificate.serial_number,
        certificate.not_valid_before_utc.astimezone(UTC),
        certificate.not_valid_after_utc.astimezone(UTC),
        names,
    )


def _name(name: Any) -> str:
    """Return a distinguished name as Java's X500Principal does: RFC 2253, unknown attributes as OID and DER in hex."""
    return ",".join("+".join(sorted(map(_attribute, rdn))) for rdn in reversed(list(name.rdns)))


def _attribute(attribute: Any) -> str:
    if attribute.rfc4514_attribute_name in _KNOWN_NAMES:
        return str(attribute.rfc4514_string())
    raw = attribute.value if isinstance(attribute.value, bytes) else attribute.value.encode()
    head = (
        bytes([attribute._type.value, len(raw)])
        if len(raw) < 128
        else bytes([attribute._type.value, 0x82, *divmod(len(raw), 256)])
    )
    return f"{attribute.oid.dotted_string}=#{(head + raw).hex()}"
