"""What clients, brokers and commands share of TLS: keys and certificates from files, contexts from them."""

from .contexts import ClientAuth, client_context, server_context
from .issuing import Issued, issue, make_authority
from .stores import Certificate, KeyMaterial, describe_certificates, load_key_material, load_trust

__all__ = [
    "Certificate",
    "ClientAuth",
    "Issued",
    "KeyMaterial",
    "client_context",
    "describe_certificates",
    "issue",
    "load_key_material",
    "load_trust",
    "make_authority",
    "server_context",
]
