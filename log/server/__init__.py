"""The shell around the broker: sockets, the loop, the embedded broker.

with start_embedded("./data") as broker:
    broker.submit("Metadata", 12, messages.MetadataRequest(topics=None)).result()
"""

from .addresses import Address, parse_address
from .embedded import EmbeddedBroker, start_embedded
from .shell import BrokerShell, unix_socket_path

__all__ = ["Address", "BrokerShell", "EmbeddedBroker", "parse_address", "start_embedded", "unix_socket_path"]
