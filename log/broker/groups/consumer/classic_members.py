"""Members of the classic protocol in a consumer group: how a group changes its protocol while it is in use (KIP-848).

Such a member joins, syncs and sends heartbeats as in a classic group, but the coordinator assigns. Its generation is its member
epoch; REBALANCE_IN_PROGRESS tells it to join anew, which is how it says what it has given up and hears what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from logflume.log.broker.groups.classic.requests import JoinRequest, JoinResult, SyncRequest, SyncResult
from logflume.log.broker.groups.config import GroupConfig
from logflume.log.broker.groups.epoch_records import Partition
from logflume.log.broker.groups.epoch_rules import Records
from logflume.log.broker.groups.refused import Refused
from logflume.log.broker.groups.subscription import Subscription, read_subscription, write_assignment
from logflume.log.broker.ports import Topics
from logflume.log.broker.replies import Reply
from logflume.log.errors import DecodeError
from logflume.log.protocol.errors import ErrorCode

from .group import CONSUMER_PROTOCOL_TYPE, ConsumerGroup, ConsumerMember, MemberState
from .groups import ConsumerGroups, Update
from .records import ClassicMember, MemberValue

Convert = Callable[[ConsumerGroup, Records], Reply | None]
"""Makes a group a classic one now that its last member of the consumer protocol was replaced, which would have written these
records; None if it stays what it is."""


class ClassicMembers:
    """The rules for them. Holds no state of its own."""

    def __init__(
        self,
        config: GroupConfig,
        rules: ConsumerGroups,
        topics: Topics,
        new_id: Callable[[], str],
        convert: Convert,
    ) -> None:
        self._config, self._rules, self._topics, self._new_id, self._convert = config, rules, topics, new_id, convert

    def join(self, group: ConsumerGroup, request: JoinRequest) -> Reply:
        """Join, or join anew; the reply is a JoinResult once what it says is on disk."""
        reply = Reply()
        try:
            self._check_join(group, request)
            subscription = _read(request)
            if not request.member_id and request.instance_id is None and request.is_id_required:
                raise Refused(ErrorCode.MEMBER_ID_REQUIRED, "")
            is_last = self._replaces_last(group, request)
            member, records = self._find_or_add(group, request)
        except Refused as refused:
            is_new = refused.error is ErrorCode.MEMBER_ID_REQUIRED
            reply.set(JoinResult(refused.error, self._new_id() if is_new else request.member_id))
            return reply
        metadata = _metadata(member.metadata, request, subscription)
        failed = JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)

        def go_on(records: Records) -> Reply:
            self._rules.restart_timers(group, member)
            member.rejoin.set_after(max(request.rebalance_timeout_ms, 0))
            result = JoinResult(
                error=ErrorCode.NONE,
                member_id=member.member_id,
                generation=member.current.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=request.protocols[0][0],
            )
            written = self._convert(group, records) if is_last else None
            if written is None:
                return self._rules.answer(group, records, result, failed)
            written.then(lambda offset: reply.set(result if offset >= 0 else failed))
            return reply

        news = Update(metadata, self._ids(subscription.owned), is_joining=True)
        return self._rules.update(group, member, news, records, go_on, failed)

    def _check_join(self, group: ConsumerGroup, request: JoinRequest) -> None:
        config = self._config
        if config.consumer_migration_policy == "disabled":
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The group has members of the consumer protocol.")
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT, "")
        if request.member_id not in group.members and request.instance_id not in group.static:
            self._rules.check_room(group)
        if not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")

    def _replaces_last(self, group: ConsumerGroup, request: JoinRequest) -> bool:
        """Whether the member takes the place of a static one that is the last of the consumer protocol."""
        holder = group.members.get(group.static.get(request.instance_id or "", ""))
        others = [member for member in group.members.values() if not member.is_classic]
        return holder is not None and others == [holder]

    def _find_or_add(self, group: ConsumerGroup, request: JoinRequest) -> tuple[ConsumerMember, Records]:
        instance_id = request.instance_id
        if instance_id is None:
            return group.members.get(request.member_id) or self._rules.add(group, request.member_id or self._new_id(), None), {}
        holder_id = group.static.get(instance_id)
        if request.member_id:
            return self._member(group, request.member_id, instance_id), {}
        if holder_id is None:
            return self._rules.add(group, self._new_id(), instance_id), {}
        return self._rules.take_over(group, group.members[holder_id], self._new_id())

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> Reply:
        """Ask for the assignment; the reply is a SyncResult."""
        try:
            member = self._classic_member(group, request.member_id, request.instance_id)
            classic = member.metadata.classic
            assert classic is not None
            name, metadata = classic.protocols[0]
            if member.current.epoch != request.generation:
                raise Refused(ErrorCode.ILLEGAL_GENERATION, "")
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
            if group.assignment_epoch > member.current.epoch and member.current.state != MemberState.UNREVOKED_PARTITIONS:
                self._await_rejoin(member)
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "")
        except Refused as refused:
            reply = Reply()
            reply.set(SyncResult(refused.error))
            return reply
        member.rejoin.cancel()
        self._rules.restart_timers(group, member)
        assignment = write_assignment(self._names(member.current.assigned), int.from_bytes(metadata[:2], "big"))
        result = SyncResult(ErrorCode.NONE, assignment, request.protocol_type, request.protocol_name)
        return self._rules.answer(group, {}, result, SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Keep a member alive; REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            member = self._classic_member(group, member_id, instance_id)
        except Refused as refused:
            return refused.error
        if member.current.epoch != generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rules.restart_timers(group, member)
        current = member.current
        is_behind = current.epoch < group.assignment_epoch or current.state == MemberState.UNREVOKED_PARTITIONS
        if is_behind or (current.state == MemberState.UNRELEASED_PARTITIONS and not group.is_waiting(member)):
            self._await_rejoin(member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: ConsumerGroup, leaving: Sequence[tuple[str, str | None]]) -> Reply:
        """Remove members, of either protocol; the reply is a list of ErrorCodes aligned with `leaving`."""
        results: list[ErrorCode] = []
        gone: list[ConsumerMember] = []
        for member_id, instance_id in leaving:
            try:
                member = self._member(group, member_id or group.static.get(instance_id or "", ""), instance_id)
            except Refused as refused:
                results.append(refused.error)
                continue
            results.append(ErrorCode.NONE)
            if member not in gone:
                gone.append(member)
        if not gone:
            reply = Reply()
            reply.set(results)
            return reply
        failed = [error or ErrorCode.COORDINATOR_NOT_AVAILABLE for error in results]
        return self._rules.remove_members(group, gone, results, failed)

    def _await_rejoin(self, member: ConsumerMember) -> None:
        if not member.rejoin.is_set:
            member.rejoin.set_after(max(member.metadata.rebalance_timeout_ms, 0))

    def _classic_member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        member = self._member(group, member_id, instance_id)
        if not member.is_classic:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "")
        return member

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Raises Refused UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            holder_id = group.static.get(instance_id)
            if holder_id is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "")
            if holder_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "")
        member = group.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "")
        return member

    def _ids(self, partitions: frozenset[tuple[str, int]]) -> frozenset[Partition]:
        named = ((self._topics.id_of(name), index) for name, index in partitions)
        return frozenset((topic_id, index) for topic_id, index in named if topic_id is not None)

    def _names(self, partitions: frozenset[Partition]) -> list[tuple[str, int]]:
        named = ((self._topics.name_of(topic_id), index) for topic_id, index in partitions)
        return [(name, index) for name, index in named if name is not None]


def _read(request: JoinRequest) -> Subscription:
    try:
        first, *_ = [read_subscription(metadata) for _, metadata in request.protocols]
        return first
    except DecodeError as error:
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _metadata(old: MemberValue, request: JoinRequest, subscription: Subscription) -> MemberValue:
    return replace(
        old,
        rack_id=subscription.rack_id if subscription.rack_id is not None else old.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=tuple(sorted(subscription.topics)),
        regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMember(request.session_timeout_ms, request.protocols),
    )
