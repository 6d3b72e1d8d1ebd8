"""The names of internal topics: what brokers, logflume's services, Kafka Connect and schema registries keep for themselves.

They are nobody's input or output: no stream, table, topology or connector reads or writes them; a consumer may look at them.
`log/broker/security/internal_topics.py` says who changes them.
"""

from __future__ import annotations

from .errors import InvalidInput

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
BROKER_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
"""What the broker keeps itself; Kafka flags these as internal."""
SERVICE_PREFIX = "_logflume-"
"""Before the names of what logflume's services keep."""
_PREFIXES = ("__", SERVICE_PREFIX, "_confluent")
KNOWN_NAMES = frozenset({"_schemas", "connect-configs", "connect-offsets", "connect-status", "connect-statuses"})
"""What schema registries and Connect call theirs."""


def is_internal_topic(topic: str) -> bool:
    """Whether a topic is somebody's own memory.

    >>> is_internal_topic("__consumer_offsets"), is_internal_topic("_logflume-sql-commands"), is_internal_topic("_mine")
    (True, True, False)
    """
    return topic.startswith(_PREFIXES) or topic in KNOWN_NAMES


def is_hidden_topic(topic: str) -> bool:
    """Whether lists leave a topic out: it is internal, or an application keeps its state or its own traffic in it.

    >>> is_hidden_topic("delays-AGGREGATE-changelog"), is_hidden_topic("delays")
    (True, False)
    """
    return is_internal_topic(topic) or topic.endswith(("-changelog", "-repartition"))


def check_own_topic(topic: str) -> None:
    """Raise InvalidInput for a topic that is internal."""
    if is_internal_topic(topic):
        raise InvalidInput(f"topic {topic} is internal: what is in it belongs to the service that keeps it; choose another topic")
