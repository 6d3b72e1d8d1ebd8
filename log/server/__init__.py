"""The shell around the broker: sockets, the loop, the embedded broker.

with start_embedded("./data") as broker:
    broker.submit("Metadata", 12, messages.MetadataRequest(topics=None)).result()

What runs a broker is loaded when it is first used: a supervisor only starts one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logflume.log.logs import JsonFormatter, LogFormat

from .addresses import Address, parse_address, unix_socket_path
from .config_files import configured_data_dir, gather_configs, read_config_file, refuse_contradictions
from .listeners import client_address

if TYPE_CHECKING:
    from .embedded import EmbeddedBroker, start_embedded
    from .shell import BrokerShell

_LAZY = {"BrokerShell": "shell", "EmbeddedBroker": "embedded", "start_embedded": "embedded"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


__all__ = [
    "Address",
    "BrokerShell",
    "EmbeddedBroker",
    "JsonFormatter",
    "LogFormat",
    "client_address",
    "configured_data_dir",
    "gather_configs",
    "parse_address",
    "read_config_file",
    "refuse_contradictions",
    "start_embedded",
    "unix_socket_path",
]
