"""A simulated broker with its coordinators, spoken to by members of share groups in messages of the protocol."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import messages, tables

from ._simulated_broker import SimulatedBroker

Acks = dict[tuple[int, int], Sequence[int]]
"""(first, last) offset -> acknowledge types."""


class ShareBroker:
    """One broker. Requests of several members; replies that wait are returned as `Reply`."""

    def __init__(self, path: Path, *, flusher: Any = None) -> None:
        self.inner = SimulatedBroker(path, flusher=flusher)
        self._attach()

    def _attach(self) -> None:
        self.coordinators = Coordinators(self.inner.core)
        self.inner.handlers = Handlers(
            self.inner.core,
            coordinators=self.coordinators.handlers(),
            admission=self.coordinators.transactions,
            long_polls=[self.coordinators.share.fetch],
        )
        self.time, self.core, self.share = self.inner.time, self.inner.core, self.coordinators.share

    def power_cut(self) -> None:
        """Lose everything that was not synced, and start again."""
        self.coordinators.close()
        self.inner.power_cut(random.Random(1))
        self._attach()

    def close(self) -> None:
        self.coordinators.close()
        self.inner.close()

    def send(self, api: str, *, version: int | None = None, connection: int = 1, **fields: Any) -> Any:
        """Send a request; return the response, or the Reply that it will come by."""
        table = tables.api_named(api)
        version = table.versions.last if version is None else version
        request = getattr(messages, f"{api}Request")(**fields)
        answer = self.inner.handlers.handle(RequestContext(table.key, version, 1, "c", "127.0.0.1", connection), request)
        return answer.value if isinstance(answer, Reply) and answer.is_done else answer

    def set_group(self, group: str, **configs: str) -> None:
        """Set a group's configs, with `_` for `.`."""
        changed = {name.replace("_", "."): value for name, value in configs.items()}
        self.core.check_group_configs(group, changed)
        self.core.slices.run(self.core.set_group_configs(group, changed))

    def topic_id(self, name: str) -> bytes:
        return self.core.cluster.topics[name].topic_id

    def heartbeat(self, member: str, epoch: int = 0, *, group: str = "g", topics: Sequence[str] | None = None) -> Any:
        names = None if topics is None else list(topics)
        return self.send(
            "ShareGroupHeartbeat", group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=names
        )


class Member:
    """A member with a share session: remembers its epochs."""

    def __init__(self, broker: ShareBroker, name: str, *topics: str, group: str = "g", connection: int = 1) -> None:
        self.broker, self.name, self.group, self.connection = broker, name, group, connection
        joined = broker.heartbeat(name, group=group, topics=topics)
        assert joined.error_code == 0, joined
        self.member_epoch = joined.member_epoch
        self.assigned = {(t.topic_id, index) for t in joined.assignment.topic_partitions for index in t.partitions}
        self.session_epoch = 0

    def fetch(
        self, *partitions: tuple[str, int], acks: dict[tuple[str, int], Acks] | None = None, version: int = 2, **fields: Any
    ) -> Any:
        """Fetch in the session; the first names the partitions. Returns the response or a Reply."""
        options = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10**7, "max_records": 500, "batch_size": 500} | fields
        epoch = options.pop("epoch", self.session_epoch)
        response = self.broker.send(
            "ShareFetch",
            version=version,
            connection=self.connection,
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=self._topics(messages.ShareFetchRequest, "FetchTopic", "FetchPartition", partitions, acks or {}),
            **options,
        )
        self.session_epoch = 0 if epoch < 0 else epoch + 1
        return response

    def acknowledge(self, acks: dict[tuple[str, int], Acks], *, epoch: int | None = None, **fields: Any) -> Any:
        epoch = self.session_epoch if epoch is None else epoch
        response = self.broker.send(
            "ShareAcknowledge",
            connection=self.connection,
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=self._topics(messages.ShareAcknowledgeRequest, "AcknowledgeTopic", "AcknowledgePartition", (), acks),
            **fields,
        )
        self.session_epoch = 0 if epoch < 0 else epoch + 1
        return response

    def take(self, *partitions: tuple[str, int], **options: Any) -> list[tuple[int, int, int]]:
        """Fetch and return what was acquired: (first, last, delivery count), of one partition at most."""
        response = self.fetch(*partitions, **options)
        assert response.error_code == 0, response
        return [entry for acquired in acquired_of(response).values() for entry in acquired]

    def _topics(
        self, request: Any, topic_class: str, partition_class: str, partitions: Sequence[tuple[str, int]], acks: dict[Any, Acks]
    ) -> list[Any]:
        batch = request.AcknowledgementBatch
        made: dict[str, Any] = {}
        for topic, index in dict.fromkeys([*partitions, *acks]):
            if topic not in made:
                made[topic] = getattr(request, topic_class)(topic_id=self.broker.topic_id(topic))
            batches = [
                batch(first_offset=first, last_offset=last, acknowledge_types=list(types))
                for (first, last), types in acks.get((topic, index), {}).items()
            ]
            made[topic].partitions.append(
                getattr(request, partition_class)(partition_index=index, acknowledgement_batches=batches)
            )
        return list(made.values())


def acquired_of(response: Any) -> dict[int, list[tuple[int, int, int]]]:
    """Return what a ShareFetch response gives by partition index."""
    return {
        partition.partition_index: [(a.first_offset, a.last_offset, a.delivery_count) for a in partition.acquired_records]
        for topic in response.responses
        for partition in topic.partitions
        if partition.acquired_records
    }


def ack_errors(response: Any) -> list[int]:
    """Return the acknowledge errors of a response, of either API, by partition."""
    return [
        getattr(partition, "acknowledge_error_code", partition.error_code)
        for topic in response.responses
        for partition in topic.partitions
    ]
