"""Where ACLs are kept (a document of the cluster's metadata), and the authorizer that the settings ask for."""

from __future__ import annotations

from collections.abc import Iterable

from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError

from ..cluster import ClusterState
from ..configs import BrokerConfig
from .acls import Acl, acl_from_json, acl_to_json
from .authorizer import AclAuthorizer

DOCUMENT = "acls"


def load_acls(cluster: ClusterState) -> tuple[Acl, ...]:
    """Return the ACLs kept with the cluster's metadata. Raises StorageError."""
    try:
        return tuple(acl_from_json(value) for value in cluster.document(DOCUMENT) or ())
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(f"the ACLs in cluster.json cannot be read ({error!r}); restore the file from a backup") from error


def make_authorizer(config: BrokerConfig, cluster: ClusterState) -> AclAuthorizer | None:
    """Return the authorizer that the broker's settings ask for, None for none. Raises KafkaError INVALID_CONFIG, StorageError."""
    if not config.text("authorizer.class.name"):
        return None
    super_users = [name.strip() for name in config.text("super.users").split(";") if name.strip()]
    for principal in super_users:
        if ",User:" in principal or not all(principal.partition(":")):
            expected = "expected principals as User:alice, separated by semicolons"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"super.users: {expected}, found {principal[:100]!r}")
    return AclAuthorizer(
        load_acls(cluster),
        super_users=super_users,
        is_open_without_acls=config.is_on("allow.everyone.if.no.acl.found"),
    )


def store_acls(cluster: ClusterState, acls: Iterable[Acl]) -> None:
    """Keep these ACLs, durably. Raises StorageError."""
    cluster.set_document(DOCUMENT, [acl_to_json(acl) for acl in acls])
