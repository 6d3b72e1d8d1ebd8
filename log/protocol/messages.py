"""All message classes of the protocol, made from the tables at first use.

>>> from logflume.log.protocol import messages
>>> messages.HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
HeartbeatRequest(group_id='g', generation_id=3, member_id='m', group_instance_id=None)
"""

from __future__ import annotations

from functools import cache
from typing import Any

from . import tables
from .classes import make_class


@cache
def message_class(name: str) -> type[Any]:
    """Return the class of a message (`ProduceRequest`, `ConsumerProtocolAssignment`). Raises UnknownName."""
    return make_class(message_table(name))


def message_table(name: str) -> tables.Message:
    """Return the table of a message by its name. Raises UnknownName."""
    if name.endswith("Request"):
        return tables.api_named(name.removesuffix("Request")).request
    if name.endswith("Response"):
        return tables.api_named(name.removesuffix("Response")).response
    return tables.data_message(name)


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(name)
    return message_class(name)
