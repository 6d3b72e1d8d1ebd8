"""A schema registry with Confluent's REST interface, kept in a compacted topic of the log.

    with RegistryServer("127.0.0.1:9092", port=8081) as registry:
        registry.address

Schemas and rules alone, without a server: `logflume.log.registry.schemas`, `logflume.log.registry.compatibility`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Fault, RegistryError

if TYPE_CHECKING:
    from .credentials import credentials_of
    from .schemas import Limits
    from .server import RegistryServer, Tls, loop_factory
    from .users import EVERYTHING, Rights, UserFile, Users

_LAZY = {
    "EVERYTHING": ".users",
    "Limits": ".schemas",
    "RegistryServer": ".server",
    "Rights": ".users",
    "Tls": ".server",
    "UserFile": ".users",
    "credentials_of": ".credentials",
    "Users": ".users",
    "loop_factory": ".server",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)


__all__ = [
    "EVERYTHING",
    "Fault",
    "Limits",
    "RegistryError",
    "RegistryServer",
    "Rights",
    "Tls",
    "UserFile",
    "Users",
    "credentials_of",
    "loop_factory",
]
