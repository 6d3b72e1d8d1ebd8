"""A group coordinator in simulated surroundings, spoken to in messages of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any

from logflume.log.broker import groups
from logflume.log.broker.access import UNRESTRICTED, Operation, Resource, Rights
from logflume.log.broker.groups import GroupConfig, GroupCoordinator
from logflume.log.broker.ports import Admission, Offload, do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedJournal, SimulatedTime, SimulatedTopics
from logflume.log.broker.turns.slices import Slices
from logflume.log.protocol import codec, messages, tables
from logflume.log.protocol.errors import ErrorCode

TOPICS = {"t": 4, "u": 2}


class Settings:
    """Settings of groups: the defaults, unless a test puts others into `own` (group id -> name -> value)."""

    def __init__(self, broker: dict[str, str] | None = None) -> None:
        self.config = BrokerConfig(broker)
        self.own: dict[str, dict[str, str]] = {}

    def number(self, name: str, group_id: str) -> int:
        return self.config.group_number(name, self.own.get(group_id, {}))


class Denied:
    """Rights to everything but what is listed."""

    def __init__(self, *denied: tuple[Operation, Resource, str]) -> None:
        self._denied = denied

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, resource, name) not in self._denied

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        return True


class AdmitAll:
    """A transaction coordinator that lets every producer write, or answers what it is told to."""

    def __init__(self) -> None:
        self.answer = Admission()
        self.asked: list[tuple[Any, ...]] = []

    def admit(self, *args: Any, can_add: bool) -> Admission:
        self.asked.append((*args, can_add))
        return self.answer


class NoShareStates:
    """Share groups that never fetched."""

    def delete_group(self, group_id: str) -> Reply:
        return Reply.of(ErrorCode.NONE)


class Broker:
    """One broker's groups. `crash` loses what is not on disk and starts anew from the journal."""

    def __init__(
        self,
        *,
        config: GroupConfig | None = None,
        journal: SimulatedJournal | None = None,
        settings: Settings | None = None,
        time: SimulatedTime | None = None,
        offload: Offload = do_at_once,
        next_turn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.config = config or GroupConfig()
        self.time = time or SimulatedTime()
        self._offload, self._slices = offload, Slices(next_turn)
        self.topics = SimulatedTopics(dict(TOPICS))
        self.admission = AdmitAll()
        self.rights: Rights = UNRESTRICTED
        self.settings = settings or Settings()
        self._ids = itertools.count(1)
        self.journal = journal or SimulatedJournal()
        self._start()

    def _start(self) -> None:
        self.groups = GroupCoordinator(
            self.config,
            self.time,
            self.time,
            self.journal,
            self.topics,
            self.settings,
            self.topics,
            NoShareStates(),
            new_id=lambda: f"id{next(self._ids)}",
            offload=self._offload,
        )
        self.groups.load()
        self.handlers: dict[str, Callable[[RequestContext, Any], Any]] = groups.handlers(
            self.groups, self.topics, self.admission, lambda context: (1, "localhost", 9092)
        )

    def crash(self, *, kept: int = 0) -> None:
        self.groups.close()
        self.journal = self.journal.crashed(kept=kept)
        self._start()

    def send(self, api: str, *, version: int | None = None, client_id: str = "c", **fields: Any) -> Any:
        """Send a request; return the response, or the Reply that it will come by."""
        table = tables.api_named(api)
        version = table.versions.last if version is None else version
        request = getattr(messages, f"{api}Request")(**fields)
        wire = b"".join(codec.encode(request, version, bytearray()))
        decoded = codec.decode_request(table.key, version, memoryview(wire))
        answer = self.handlers[api](RequestContext(table.key, version, 1, client_id, "127.0.0.1", 1, rights=self.rights), decoded)
        if isinstance(answer, Generator):
            answer = self._slices.run(answer)
        if not isinstance(answer, Reply):
            return _through_wire(answer, table.key, version)
        mapped = Reply()
        answer.then(lambda response: mapped.set(_through_wire(response, table.key, version)))
        return mapped.value if mapped.is_done else mapped

    # -- the common requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"m"),),
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        protocol_type: str = "consumer",
        client_id: str = "c",
    ) -> Any:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
        return self.send(
            "JoinGroup",
            version=version,
            client_id=client_id,
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[protocol(name=name, metadata=metadata) for name, metadata in protocols],
        )

    def new_member(self, **options: Any) -> tuple[str, Reply]:
        """Join as a new dynamic member: once for the id, once with it."""
        first = self.join(**options)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        version: int = 5,
        **fields: Any,
    ) -> Any:
        assignment = messages.SyncGroupRequest.SyncGroupRequestAssignment
        return self.send(
            "SyncGroup",
            version=version,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[assignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()],
            **fields,
        )

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        response = self.send(
            "Heartbeat", group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(response.error_code)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        """Return an error per member; nothing while the response waits for the disk."""
        identity = messages.LeaveGroupRequest.MemberIdentity
        response = self.send(
            "LeaveGroup", group_id=group, members=[identity(member_id=m, group_instance_id=i) for m, i in members]
        )
        if isinstance(response, Reply):
            return []
        return [ErrorCode(m.error_code) for m in response.members] or [ErrorCode(response.error_code)]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = None,
        version: int = 9,
    ) -> Any:
        request = messages.OffsetCommitRequest
        topic, partition = request.OffsetCommitRequestTopic, request.OffsetCommitRequestPartition
        topics = [
            topic(
                name=name,
                topic_id=name.encode().ljust(16, b"\0"),
                partitions=[partition(partition_index=index, committed_offset=offset, committed_metadata=metadata)],
            )
            for (name, index), offset in offsets.items()
        ]
        answer = self.send(
            "OffsetCommit",
            version=version,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=topics,
        )
        return answer if isinstance(answer, Reply) else commit_errors(answer)

    def txn_commit(self, offsets: dict[tuple[str, int], int], *, producer_id: int = 7, group: str = "g", **fields: Any) -> Any:
        request = messages.TxnOffsetCommitRequest
        topic, partition = request.TxnOffsetCommitRequestTopic, request.TxnOffsetCommitRequestPartition
        topics = [
            topic(name=name, partitions=[partition(partition_index=index, committed_offset=offset, committed_metadata="")])
            for (name, index), offset in offsets.items()
        ]
        answer = self.send(
            "TxnOffsetCommit",
            transactional_id="tx",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            topics=topics,
            **fields,
        )
        return answer if isinstance(answer, Reply) else commit_errors(answer)

    def end_transaction(self, *, is_commit: bool, producer_id: int = 7, group: str = "g") -> None:
        partition = self.groups.journal_partition(group)
        marked = self.journal.append_marker(partition, producer_id, 0, is_commit=is_commit)
        marked.then(lambda _: self.groups.on_marker(partition, producer_id, is_commit=is_commit))

    def fetch(
        self, *partitions: tuple[str, int], group: str = "g", require_stable: bool = False
    ) -> dict[tuple[str, int], tuple[int, ErrorCode]]:
        """Return (offset, error) per partition; without arguments of all partitions."""
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopics
        topics = [topic(name=name, partition_indexes=[index]) for name, index in partitions] or None
        response = self.send(
            "OffsetFetch",
            version=9,
            groups=[request.OffsetFetchRequestGroup(group_id=group, topics=topics)],
            require_stable=require_stable,
        )
        return {
            (t.name, p.partition_index): (p.committed_offset, ErrorCode(p.error_code))
            for t in response.groups[0].topics
            for p in t.partitions
        }

    def describe(self, group: str = "g", *, version: int = 6) -> Any:
        return self.send("DescribeGroups", version=version, groups=[group], include_authorized_operations=True).groups[0]


def commit_errors(response: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        ((t.name or t.topic_id.rstrip(b"\0").decode()), p.partition_index): ErrorCode(p.error_code)
        for t in response.topics
        for p in t.partitions
    }


def _through_wire(response: Any, api_key: int, version: int) -> Any:
    """Encode and decode a response, so that it is what a client sees."""
    wire = b"".join(codec.encode(response, version, bytearray()))
    return codec.decode_response(api_key, version, memoryview(wire))
