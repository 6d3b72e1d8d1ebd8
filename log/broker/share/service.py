"""Share groups put together: members, share partitions, sessions and handlers over the broker's journals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..core import Core
from ..groups.ports import Topics
from ..seams import Handler, Journal
from .config import GroupSettings, ShareConfig
from .fetch import ShareFetchHandler
from .group_handlers import ShareGroupHandlers
from .group_replay import GroupReplay
from .membership import ShareGroups
from .namespace import GroupNamespace
from .offset_handlers import ShareOffsetHandlers
from .partitions import SharePartitions


class ShareService:
    """All of share groups on one broker. Reads its journals when it is made. Raises StorageError, DecodeError."""

    def __init__(
        self,
        core: Core,
        topics: Topics,
        settings: GroupSettings,
        *,
        offsets: Journal,
        replayed: GroupReplay,
        states: Journal,
        is_taken: Callable[[str], bool],
    ) -> None:
        """`offsets`, `states`: the journals of groups and of share partitions; `replayed`: what the first held.

        `is_taken`: whether another kind of group has an id.
        """
        self._core, self._topics = core, topics
        numbers = core.config.number
        config = ShareConfig(
            max_groups=numbers("logflume.share.max.groups"),
            max_size=numbers("group.share.max.size"),
            max_sessions=numbers("group.share.max.share.sessions"),
            fetch_max_bytes=numbers("fetch.max.bytes"),
        )
        self.partitions = SharePartitions(core.clock, core.timers, states, settings)
        self.groups = ShareGroups(
            config,
            core.clock,
            core.timers,
            offsets,
            topics,
            settings,
            is_taken=is_taken,
            on_member_expired=lambda group_id, member_id: self.fetch.close_session((group_id, member_id)),
        )
        self.fetch = ShareFetchHandler(core, self.groups, self.partitions, settings, config)
        self.partitions.load()
        self.groups.restore(replayed.values)
        self._forget_deleted_topics(())
        core.topic_listeners.append(self._forget_deleted_topics)

    def handlers(self, of_groups: Mapping[str, Handler]) -> dict[str, Handler]:
        """Return the handlers by API name, with those of the other groups that share groups have a part in."""
        members = ShareGroupHandlers(self.groups, self._topics)
        offsets = ShareOffsetHandlers(self._core, self.groups, self.partitions)
        own: dict[str, Handler] = {
            "ShareGroupHeartbeat": members.heartbeat,
            "ShareGroupDescribe": members.describe,
            "ShareFetch": self.fetch.share_fetch,
            "ShareAcknowledge": self.fetch.share_acknowledge,
            "DescribeShareGroupOffsets": offsets.describe,
            "AlterShareGroupOffsets": offsets.alter,
            "DeleteShareGroupOffsets": offsets.delete,
        }
        return GroupNamespace(of_groups, self.groups, self.partitions).handlers() | own

    def close(self) -> None:
        """Stop all timers."""
        self.groups.close()
        self.partitions.close()

    def _forget_deleted_topics(self, _: Collection[str]) -> None:
        """Forget what there is of topics that are gone; also those that a crash kept from being forgotten."""
        gone = frozenset(topic_id for topic_id in self.partitions.topic_ids() if self._topics.name_of(topic_id) is None)
        if gone:
            self.partitions.delete(self.partitions.keys(topic_ids=gone))
        self.groups.on_topics_deleted()
