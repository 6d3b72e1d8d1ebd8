"""What clients, brokers and commands share of TLS: keys and certificates from files, contexts from them."""

from .contexts import ClientAuth, client_context, server_context
from .stores import Certificate, KeyMaterial, describe_certificates, load_key_material, load_trust

__all__ = [
    "Certificate",
    "ClientAuth",
    "KeyMaterial",
    "client_context",
    "describe_certificates",
    "load_key_material",
    "load_trust",
    "server_context",
]
