"""The APIs of the group coordinator, by name: what the broker plugs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..seams import RequestContext
from .admin_handlers import GroupAdminHandlers, NodeOf
from .classic.handlers import MembershipHandlers
from .consumer.handlers import ConsumerHandlers
from .coordinator import GroupCoordinator
from .offset_handlers import OffsetHandlers
from .ports import Topics, TxnAdmission
from .share.handlers import ShareGroupHandlers
from .streams.handlers import StreamsHandlers

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
