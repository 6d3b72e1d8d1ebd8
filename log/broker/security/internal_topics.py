"""Topics that are somebody's own memory, and the one rule about who may change them.

Who creates, writes, cuts, extends, configures and deletes them:

- `__consumer_offsets`, `__transaction_state`, `__share_group_state`: the broker alone.
- `_logflume-...`, which logflume's services keep (the SQL catalog): the owner of the data, that is this process and whoever comes
  by its Unix socket; with ACLs also who may ALTER the cluster.

ACLs on the topic count besides. Reading needs the rights of any topic. Pure.
"""

from __future__ import annotations

from logflume.log.broker.access import CLUSTER_NAME, OWNER, UNRESTRICTED, Operation, Resource
from logflume.log.broker.requests import RequestContext
from logflume.log.internal_topics import BROKER_TOPICS, KNOWN_NAMES, SERVICE_PREFIX
from logflume.log.protocol import ErrorCode, KafkaError

BEYOND_FOR_KNOWN_NAMES, BEYOND_FOR_SERVICES = 500, 1_000


def require_may_change(context: RequestContext, topic: str) -> None:
    """Raise KafkaError if the topic is internal and belongs to somebody else than who asks."""
    if not topic.startswith("_"):
        return
    if topic in BROKER_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own: clients read it only", topic=topic)
    if topic.startswith(SERVICE_PREFIX) and not _is_service(context):
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"{topic} is kept by logflume's services: expected the owner of the data (the broker's Unix socket) or, with ACLs, "
            f"somebody who may ALTER the cluster, found {context.principal}",
            topic=topic,
        )


def partitions_beyond(topic: str) -> int | None:
    """Return how many partitions there may be beyond `logflume.max.partitions` when this topic is made or extended.

    So that filling a broker stops neither its groups and transactions nor the services: none for topics of clients, some for
    names that Connect and registries use, more for services' topics, which clients cannot make; no bound (None) for the broker's.
    """
    if topic in BROKER_TOPICS:
        return None
    if topic.startswith(SERVICE_PREFIX):
        return BEYOND_FOR_SERVICES
    return BEYOND_FOR_KNOWN_NAMES if topic in KNOWN_NAMES else 0


def change_refusal(context: RequestContext, topic: str) -> int:
    """Return the error code with which `require_may_change` refuses, 0 if it does not."""
    try:
        require_may_change(context, topic)
    except KafkaError as refused:
        return refused.number
    return ErrorCode.NONE


def _is_service(context: RequestContext) -> bool:
    """Whether who asks may be a service; without ACLs an address on the network says nothing about that."""
    if context.principal == OWNER:
        return True
    return context.rights is not UNRESTRICTED and context.may(Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
