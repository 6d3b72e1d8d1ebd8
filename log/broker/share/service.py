"""What share groups have of records: their partitions, sessions and handlers over the broker's journal of share state."""

from __future__ import annotations

from collections.abc import Collection

from logflume.log.broker.core import Core
from logflume.log.broker.groups.share import ShareGroups
from logflume.log.broker.ports import GroupSettings, Topics
from logflume.log.broker.requests import Handler

from .config import ShareConfig
from .fetch import ShareFetchHandler
from .offset_handlers import ShareOffsetHandlers
from .partitions import SharePartitions


class ShareService:
    """The part of share groups that is about records, on one broker."""

    def __init__(
        self, core: Core, topics: Topics, settings: GroupSettings, groups: ShareGroups, partitions: SharePartitions
    ) -> None:
        self._core, self._topics = core, topics
        self.groups, self.partitions = groups, partitions
        numbers = core.config.number
        config = ShareConfig(
            max_sessions=numbers("group.share.max.share.sessions"),
            fetch_max_bytes=numbers("fetch.max.bytes"),
        )
        self.fetch = ShareFetchHandler(core, groups, partitions, settings, config)
        groups.expiry_listeners.append(lambda group_id, member_id: self.fetch.close_session((group_id, member_id)))
        self._forget_deleted_topics(())
        core.topic_listeners.append(self._forget_deleted_topics)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by API name."""
        offsets = ShareOffsetHandlers(self._core, self.groups, self.partitions)
        return {
            "ShareFetch": self.fetch.share_fetch,
            "ShareAcknowledge": self.fetch.share_acknowledge,
            "DescribeShareGroupOffsets": offsets.describe,
            "AlterShareGroupOffsets": offsets.alter,
            "DeleteShareGroupOffsets": offsets.delete,
        }

    def close(self) -> None:
        """Stop all timers."""
        self.partitions.close()

    def _forget_deleted_topics(self, _: Collection[str]) -> None:
        """Forget what there is of topics that are gone; also those that a crash kept from being forgotten."""
        gone = frozenset(topic_id for topic_id in self.partitions.topic_ids() if self._topics.name_of(topic_id) is None)
        if gone:
            self.partitions.delete(self.partitions.keys(topic_ids=gone))
        self.groups.on_topics_deleted()
