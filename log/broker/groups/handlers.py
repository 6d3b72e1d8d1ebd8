"""The APIs of the group coordinator, by name: what the broker plugs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logflume.log.broker.ports import Topics, TxnAdmission
from logflume.log.broker.requests import RequestContext

from .apis.admin import GroupAdminHandlers, NodeOf
from .apis.classic import MembershipHandlers
from .apis.consumer import ConsumerHandlers
from .apis.offsets import OffsetHandlers
from .apis.share import ShareGroupHandlers
from .apis.streams import StreamsHandlers
from .coordinator import GroupCoordinator

Handler = Callable[[RequestContext, Any], Any]


def handlers(coordinator: GroupCoordinator, topics: Topics, admission: TxnAdmission, node_of: NodeOf) -> dict[str, Handler]:
    """Return API name -> handler; a handler returns a response message or a Reply of one."""
    membership, offsets = MembershipHandlers(coordinator), OffsetHandlers(coordinator, topics, admission)
    admin = GroupAdminHandlers(coordinator, node_of)
    consumers = ConsumerHandlers(coordinator, topics)
    streams = StreamsHandlers(coordinator, topics)
    shares = ShareGroupHandlers(coordinator.share, topics)
    return {
        "JoinGroup": membership.join_group,
        "SyncGroup": membership.sync_group,
        "Heartbeat": membership.heartbeat,
        "LeaveGroup": membership.leave_group,
        "OffsetCommit": offsets.offset_commit,
        "TxnOffsetCommit": offsets.txn_offset_commit,
        "OffsetFetch": offsets.offset_fetch,
        "OffsetDelete": offsets.offset_delete,
        "DescribeGroups": admin.describe_groups,
        "ListGroups": admin.list_groups,
        "DeleteGroups": admin.delete_groups,
        "FindCoordinator": admin.find_coordinator,
        "ConsumerGroupHeartbeat": consumers.heartbeat,
        "ConsumerGroupDescribe": consumers.describe,
        "ShareGroupHeartbeat": shares.heartbeat,
        "ShareGroupDescribe": shares.describe,
        "StreamsGroupHeartbeat": streams.heartbeat,
        "StreamsGroupDescribe": streams.describe,
    }
