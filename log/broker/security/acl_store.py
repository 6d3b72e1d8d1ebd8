"""Where ACLs are kept (a document of the cluster's metadata), and the authorizer that the settings ask for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from logflume.log.broker.access.acls import Acl, acl_from_json, acl_to_json
from logflume.log.broker.access.authorizer import AclAuthorizer
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.state.cluster import ClusterState
from logflume.log.broker.state.metadata import DocumentSet
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import StorageError
from logflume.log.protocol import ErrorCode, KafkaError

DOCUMENT = "acls"
AT_A_TIME = 1_000
"""ACLs in one slice of the loop's time."""


class AclStore:
    """The ACLs of a cluster, and the authorizer to which they apply.

    Invariant: `_kept` has what the cluster's metadata hold, with each ACL as it is there; it is replaced, never changed.
    """

    def __init__(self, cluster: ClusterState, config: BrokerConfig) -> None:
        """Raises KafkaError INVALID_CONFIG, StorageError."""
        self._cluster = cluster
        try:
            self._kept: dict[Acl, list[Any]] = {acl_from_json(value): value for value in cluster.document(DOCUMENT) or ()}
        except (KeyError, ValueError, TypeError) as error:
            raise StorageError(f"the ACLs in cluster.json cannot be read ({error!r}); restore the file from a backup") from error
        self.authorizer = AclAuthorizer(
            self._kept, super_users=_super_users(config), is_open_without_acls=config.is_on("allow.everyone.if.no.acl.found")
        )

    def all(self) -> dict[Acl, Any]:
        """Return the ACLs as keys; of the caller to change."""
        return dict(self._kept)

    def change(self, *, added: Collection[Acl] = (), removed: Collection[Acl] = ()) -> Steps:
        """Add ACLs, or remove those that are there, durably; on return all of them apply.

        For steps that have the ACLs `in_turn`. Raises StorageError: nothing has changed.
        """
        kept = dict(self._kept)
        for part in _parts(added):
            kept |= {acl: acl_to_json(acl) for acl in part}
            yield None
        for part in _parts(removed):
            for acl in part:
                del kept[acl]
            yield None
        yield from self._cluster.later(DocumentSet(DOCUMENT, list(kept.values())))
        self._kept = kept
        for part in _parts(removed):
            self.authorizer.remove(part)
            yield None
        for part in _parts(added):
            self.authorizer.add(part)
            yield None


def _parts(acls: Collection[Acl]) -> list[list[Acl]]:
    every = list(acls)
    return [every[start : start + AT_A_TIME] for start in range(0, len(every), AT_A_TIME)]


def make_acl_store(config: BrokerConfig, cluster: ClusterState) -> AclStore | None:
    """Return the ACLs if the broker's settings ask for an authorizer. Raises KafkaError INVALID_CONFIG, StorageError."""
    return AclStore(cluster, config) if config.text("authorizer.class.name") else None


def _super_users(config: BrokerConfig) -> list[str]:
    """Raises KafkaError INVALID_CONFIG."""
    super_users = [name.strip() for name in config.text("super.users").split(";") if name.strip()]
    for principal in super_users:
        if ",User:" in principal or not all(principal.partition(":")):
            expected = "expected principals as User:alice, separated by semicolons"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"super.users: {expected}, found {principal[:100]!r}")
    return super_users
