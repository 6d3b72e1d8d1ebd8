"""Groups of a soak that are more than one member who reads and commits: a share group, a streams group. Each judges itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from logflume.log import Log, LogflumeError
from logflume.log.protocol import ErrorCode, messages

from ._attributes import check_attributes
from ._checker import Anomaly
from ._churn import Churn
from ._clients import CALL_TIMEOUT_S, Broken, guarded
from ._history import OK, UNKNOWN, At, OffsetCommit, OffsetRead, Records
from ._workers import MakeReader

RELEASED = 0.05
"""Part of the records of a share group that are given back, to be delivered again."""
DRAIN_S = 60.0
"""How long what a share group was not given yet may be in coming at the end."""


class ShareReader(Churn):
    """The one member of a share group: what it accepted, and was told that this is on disk, never comes again, all else does."""

    def __init__(self, name: str, partitions: Sequence[At], address: str, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self.partitions = partitions
        self._address = address
        self._delivered: dict[tuple[At, int], str] = {}
        self._settled: set[tuple[At, int]] = set()
        self._found: list[Anomaly] = []

    def session(self) -> None:
        self._begin_at_the_earliest()
        consumer = self._consumer()
        try:
            for _ in range(self.rng.randrange(20, 200)):
                if not self.pause():
                    return
                self._step(consumer)
        finally:
            guarded(consumer.close)

    def _begin_at_the_earliest(self) -> None:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, self.name, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self._address, "log_level": 0})
        for future in admin.incremental_alter_configs([resource]).values():
            guarded(lambda future=future: future.result(CALL_TIMEOUT_S))

    def _consumer(self) -> Any:
        consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": self._address,
                "group.id": self.name,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        consumer.subscribe(sorted({at.topic for at in self.partitions}))
        return consumer

    def _step(self, consumer: Any) -> None:
        """Take what there is, accept or release it, and hear that this is on disk."""
        polled = [each for each in guarded(lambda: consumer.poll(timeout=0.2)) if each.error() is None]
        accepted: set[tuple[At, int]] = set()
        for each in polled:
            place, value = (At(each.topic(), each.partition()), each.offset()), each.value().decode()
            check_attributes(value, each.key(), each.headers() or [], each.timestamp()[1])
            if place in self._settled:
                self._found.append(Anomaly("share-again", f"{self.name} was given {place} again, which it had accepted"))
            if self._delivered.setdefault(place, value) != value:
                self._found.append(Anomaly("inconsistent-offsets", f"{place} showed {self._delivered[place]} and {value}"))
            if self.rng.random() < RELEASED:
                guarded(lambda each=each: consumer.acknowledge(each, confluent_kafka.AcknowledgeType.RELEASE))
            else:
                guarded(lambda each=each: consumer.acknowledge(each, confluent_kafka.AcknowledgeType.ACCEPT))
                accepted.add(place)
        if polled and all(error is None for error in guarded(lambda: consumer.commit_sync(timeout=CALL_TIMEOUT_S)).values()):
            self._settled |= accepted
            self.progress += 1

    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        wanted = {(at, offset) for at in self.partitions for offset, _ in found.get(at, [])}
        consumer, end_s = self._consumer(), time.monotonic() + DRAIN_S
        while not wanted <= self._delivered.keys() and time.monotonic() < end_s:
            self._step(consumer)
        consumer.close()
        yield from self._found
        for at in self.partitions:
            for offset, value in found.get(at, []):
                if self._delivered.get((at, offset), value) != value:
                    yield Anomaly("inconsistent-offsets", f"{at}@{offset} is {value}, {self.name} was given another one")
                elif (at, offset) not in self._delivered:
                    yield Anomaly("share-lost", f"{value} at {at}@{offset} was never given to {self.name}")


class StreamsMember(Churn):
    """The one member of a streams group: it stays a member over the broker's deaths, has all tasks, and commits as one."""

    def __init__(self, name: str, sources: Sequence[At], log: Log, read_back: MakeReader, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._sources, self._log, self._read_back = sources, log, read_back
        self._number = 0
        self._found: list[Anomaly] = []

    def session(self) -> None:
        other = self._read_back(self.name, True)
        try:
            for at, offset in other.committed(self._sources).items():
                self.events.append(OffsetRead(self.name, at, offset))
            member_id = f"{self.name}-member"  # always the same: what broke may not have left
            epoch = self._beat(self._join(member_id), 0)
            for _ in range(self.rng.randrange(20, 100)):
                if not self.pause():
                    break
                epoch = self._beat(self._request(member_id, epoch), epoch)
                self._commit(member_id, epoch, other)
            self._ask(self._request(member_id, -1))
        finally:
            other.close()

    def _join(self, member_id: str) -> Any:
        request = messages.StreamsGroupHeartbeatRequest
        subtopology = request.Subtopology(subtopology_id="0", source_topics=sorted({at.topic for at in self._sources}))
        joining = self._request(member_id, 0)
        joining.rebalance_timeout_ms, joining.process_id = 60_000, self.name
        joining.topology = request.Topology(subtopologies=[subtopology])
        joining.active_tasks, joining.standby_tasks, joining.warmup_tasks = [], [], []
        return joining

    def _request(self, member_id: str, epoch: int) -> Any:
        return messages.StreamsGroupHeartbeatRequest(group_id=self.name, member_id=member_id, member_epoch=epoch)

    def _beat(self, request: Any, epoch: int) -> int:
        answer = self._ask(request)
        if answer.error_code:
            error = ErrorCode(answer.error_code)
            if epoch and error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND):
                self._found.append(Anomaly("member-lost", f"{request.member_id} at epoch {epoch} was told {error.name}"))
            raise Broken(error.name)
        if answer.member_epoch < epoch:
            self._found.append(Anomaly("epoch-back", f"{request.member_id} went from epoch {epoch} to {answer.member_epoch}"))
        if answer.active_tasks is not None:
            tasks = sorted(index for task in answer.active_tasks for index in task.partitions)
            if tasks != sorted(at.partition for at in self._sources):
                self._found.append(Anomaly("tasks", f"{request.member_id}, alone in its group, was given the tasks {tasks}"))
        return int(answer.member_epoch)

    def _commit(self, member_id: str, epoch: int, other: Any) -> None:
        self._number += 1
        at, offset = self.rng.choice(list(self._sources)), self._number
        request = messages.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(
            partition_index=at.partition, committed_offset=offset, committed_metadata=""
        )
        topic = request.OffsetCommitRequestTopic(name=at.topic, partitions=[partition])
        commit = request(group_id=self.name, generation_id_or_member_epoch=epoch, member_id=member_id, topics=[topic])
        try:
            (answer,) = self._ask(commit, max_version=9).topics
            if code := answer.partitions[0].error_code:
                raise Broken(ErrorCode(code).name)
        except Broken:
            self.events.append(OffsetCommit(self.name, at, offset, UNKNOWN))
            raise
        self.events.append(OffsetCommit(self.name, at, offset, OK))
        self.events += [OffsetRead(self.name, each, found) for each, found in other.committed([at]).items()]
        self.progress += 1

    def _ask(self, request: Any, **options: Any) -> Any:
        channel = self._log._cluster.channel
        try:
            return self._log._loop.run(channel.request(request, **options), timeout_s=CALL_TIMEOUT_S)
        except LogflumeError as error:
            raise Broken(str(error)) from error

    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        yield from self._found
