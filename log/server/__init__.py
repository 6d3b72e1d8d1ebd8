"""The shell around the broker: sockets, the loop, the embedded broker.

with start_embedded("./data") as broker:
    broker.submit("Metadata", 12, messages.MetadataRequest(topics=None)).result()
"""

from logflume.log.logs import JsonFormatter, LogFormat

from .addresses import Address, parse_address
from .config_files import configured_data_dir, gather_configs, read_config_file, refuse_contradictions
from .embedded import EmbeddedBroker, start_embedded
from .listeners import client_address
from .shell import BrokerShell, unix_socket_path

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
