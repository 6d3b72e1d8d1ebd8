"""What one may do oneself, as the broker says it of whoever asks: for a logflume broker or an Apache Kafka cluster.

It takes no right but those that it tells of. The protocol has no question for one's own name: `login_of` says what a client
shows of itself, from which a broker makes the principal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .broker.access.words import CLUSTER_NAME, Operation
from .interfaces import Admin
from .protocol import ErrorCode, KafkaError, messages

if TYPE_CHECKING:
    from .client import Security

_UNTOLD = -(1 << 31)
"""What stands in an answer whose broker tells no operations."""
_HIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_GROUP_KEY = 0
_DESCRIBE_GROUPS_VERSION = 5
"""The last one that tells of a group which is not there, or follows another protocol, without an error."""


@dataclass(frozen=True, slots=True)
class OwnRights:
    """What one may do to a resource: operations in lower-case words.

    None for what is hidden, or not there; of the cluster a broker tells only those who may describe it.
    """

    resource: str
    name: str
    operations: tuple[str, ...]


def own_rights(admin: Admin, *, topics: Sequence[str] | None = None, groups: Sequence[str] = ()) -> list[OwnRights]:
    """Return one's rights to the cluster, to topics (None: all that one may see) and to groups, which need not be there yet.

    Raises KafkaError, TransportError.
    """
    return [_cluster_rights(admin), *_topic_rights(admin, topics), *(_group_rights(admin, group) for group in groups)]


def login_of(security: Security | None) -> tuple[str, str]:
    """Return (how one logs in, the name that one shows), from one's own settings; None: a log without a network between.

    >>> login_of(None)
    ('owner of the data', 'Owner:local')
    """
    if security is None:
        return "owner of the data", "Owner:local"
    if security.is_delegated:
        return security.mechanism, f"the owner of the delegation token {security.username}"
    if security.has_sasl and security.username:
        return security.mechanism, f"User:{security.username}"
    if security.has_sasl:
        return security.mechanism, "whom the token or ticket names"
    subject = security.certificate_subject()
    return ("certificate", f"User:{subject}") if subject else ("none", "User:ANONYMOUS")


def _cluster_rights(admin: Admin) -> OwnRights:
    response = admin.request("DescribeCluster", include_cluster_authorized_operations=True)
    if response.error_code:
        raise KafkaError(response.error_code, response.error_message)
    return OwnRights("cluster", CLUSTER_NAME, _words(response.cluster_authorized_operations))


def _topic_rights(admin: Admin, names: Sequence[str] | None) -> list[OwnRights]:
    wanted = None if names is None else [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    found = admin.request(
        "Metadata", topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=True
    ).topics
    rights = [
        OwnRights("topic", each.name or "", _topic_words(each)) for each in found if names is not None or not each.is_internal
    ]
    return sorted(rights, key=lambda each: each.name)


def _topic_words(topic: messages.MetadataResponse.MetadataResponseTopic) -> tuple[str, ...]:
    """Return one's rights to a topic. Raises KafkaError: the broker does not say them, though it is not hidden."""
    if topic.error_code in _HIDDEN:
        return ()
    if topic.error_code and topic.topic_authorized_operations == _UNTOLD:
        raise KafkaError(topic.error_code, f"topic {topic.name!r}")
    return _words(topic.topic_authorized_operations)


def _group_rights(admin: Admin, group_id: str) -> OwnRights:
    at = admin.request("FindCoordinator", key=group_id, key_type=_GROUP_KEY)
    if at.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return OwnRights("group", group_id, ())
    if at.error_code:
        raise KafkaError(at.error_code, at.error_message)
    asked = {"groups": [group_id], "include_authorized_operations": True}
    (group,) = admin.request("DescribeGroups", _DESCRIBE_GROUPS_VERSION, node=at.node_id, **asked).groups
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        raise KafkaError(group.error_code, None)
    return OwnRights("group", group_id, _words(group.authorized_operations) if not group.error_code else ())


def _words(operations: int) -> tuple[str, ...]:
    """Return the words of a bit field: bit 3 is the operation with the code 3."""
    if operations == _UNTOLD:
        return ()
    return tuple(each.name.lower() for each in Operation if each.value >= 2 and operations >> each.value & 1)
