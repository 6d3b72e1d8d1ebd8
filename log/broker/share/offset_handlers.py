"""Describe-, Alter- and DeleteShareGroupOffsets (KIP-932, KIP-1226): where share groups are in their partitions."""

from __future__ import annotations

from typing import TypeVar

from logflume.log.broker.access import Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.groups.share import ShareGroup, ShareGroups
from logflume.log.broker.groups.share.records import TopicState
from logflume.log.broker.replies import Refusable, Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import messages
from logflume.log.protocol.classes import ZERO_UUID
from logflume.log.protocol.errors import ErrorCode

from .partitions import LEADER_EPOCH, SharePartitions
from .state_records import ShareKey

NOT_BEGUN = -1

Described = messages.DescribeShareGroupOffsetsResponse
Asked = messages.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
Altered = messages.AlterShareGroupOffsetsResponse
Cell = Altered.AlterShareGroupOffsetsResponsePartition
Response = TypeVar("Response", messages.AlterShareGroupOffsetsResponse, messages.DeleteShareGroupOffsetsResponse)


class ShareOffsetHandlers:
    """The APIs about start offsets. They are changed only while a group has no members."""

    def __init__(self, core: Core, groups: ShareGroups, partitions: SharePartitions) -> None:
        self._core, self._groups, self._partitions = core, groups, partitions

    def describe(
        self, context: RequestContext, request: messages.DescribeShareGroupOffsetsRequest
    ) -> messages.DescribeShareGroupOffsetsResponse | Reply:
        return Described(groups=[self._describe_group(context, asked) for asked in request.groups])

    def _describe_group(self, context: RequestContext, asked: Asked) -> Described.DescribeShareGroupOffsetsResponseGroup:
        answer = Described.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
        if not context.may(Operation.DESCRIBE, Resource.GROUP, asked.group_id):
            _fail(answer, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return answer
        for name, indexes in self._wanted(context, asked):
            topic = self._core.cluster.topics.get(name)
            out = Described.DescribeShareGroupOffsetsResponseTopic(topic_name=name)
            answer.topics.append(out)
            if not context.may(Operation.DESCRIBE, Resource.TOPIC, name):
                cell = Described.DescribeShareGroupOffsetsResponsePartition
                out.partitions = [cell(partition_index=index, start_offset=NOT_BEGUN) for index in indexes]
                for each in out.partitions:
                    _fail(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            out.topic_id = topic.topic_id if topic else ZERO_UUID
            out.partitions = [self._describe_partition(asked.group_id, name, out.topic_id, index) for index in indexes]
        return answer

    def _wanted(self, context: RequestContext, asked: Asked) -> list[tuple[str, list[int]]]:
        """Return topics and partitions: those asked for, else all with state that who asks may know of."""
        if asked.topics is not None:
            return [(topic.topic_name, list(topic.partitions)) for topic in asked.topics]
        group = self._groups.get(asked.group_id)
        known = group.initialized.values() if group else ()
        return [
            (state.name, sorted(state.partitions))
            for state in known
            if context.may(Operation.DESCRIBE, Resource.TOPIC, state.name)
        ]

    def _describe_partition(
        self, group_id: str, name: str, topic_id: bytes, index: int
    ) -> Described.DescribeShareGroupOffsetsResponsePartition:
        """Tell a start offset and how many records are not done with; -1 for what was never read."""
        answer = Described.DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=NOT_BEGUN, leader_epoch=LEADER_EPOCH
        )
        share = self._partitions.get(ShareKey(group_id, topic_id, index))
        partition = self._core.partition(name, index)
        if share is not None and partition is not None:
            share.move_start(partition.log.log_start_offset)
            answer.start_offset = share.state.start_offset
            answer.lag = max(partition.log.durable_offset - share.state.start_offset - share.state.complete_count, 0)
        return answer

    def alter(
        self, context: RequestContext, request: messages.AlterShareGroupOffsetsRequest
    ) -> messages.AlterShareGroupOffsetsResponse | Reply:
        response = messages.AlterShareGroupOffsetsResponse
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            return _refused(response, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refusal = self._groups.refusal_of_change(request.group_id, may_create=True)
        if refusal is not None:
            return response(error_code=refusal[0], error_message=refusal[1])
        topics: dict[bytes, TopicState] = {}
        starts: dict[ShareKey, int] = {}
        answer = response()
        cells: dict[ShareKey, Cell] = {}
        for asked in request.topics:
            topic = self._core.cluster.topics.get(asked.topic_name)
            out = response.AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            answer.responses.append(out)
            for each in asked.partitions:
                cell = Cell(partition_index=each.partition_index)
                out.partitions.append(cell)
                if not context.may(Operation.READ, Resource.TOPIC, asked.topic_name):
                    _fail(cell, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                elif topic is None or self._core.partition(topic.name, each.partition_index) is None:
                    _fail(cell, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif each.start_offset < 0:
                    _fail(cell, ErrorCode.INVALID_REQUEST, f"expected an offset of 0 or more, found {each.start_offset}")
                else:
                    out.topic_id = topic.topic_id
                    key = ShareKey(request.group_id, topic.topic_id, each.partition_index)
                    starts[key], cells[key] = each.start_offset, cell
            indexes = frozenset(key.partition for key in starts if topic is not None and key.topic_id == topic.topic_id)
            if topic is not None and indexes:
                topics[topic.topic_id] = TopicState(topic.name, indexes)
        if not starts:
            return answer
        reply = Reply()
        self._groups.initialize(request.group_id, topics).then(lambda error: self._begin_at(starts, cells, error, answer, reply))
        return reply

    def _begin_at(
        self, starts: dict[ShareKey, int], cells: dict[ShareKey, Cell], error: ErrorCode, answer: Altered, reply: Reply
    ) -> None:
        if error:
            for cell in cells.values():
                _fail(cell, error)
            reply.set(answer)
            return
        left = len(starts)

        def on_done(key: ShareKey, error: ErrorCode) -> None:
            nonlocal left
            left -= 1
            if error:
                _fail(cells[key], error)
            if left == 0:
                reply.set(answer)

        for key, written in self._partitions.set_start(starts).items():
            written.then(lambda error, key=key: on_done(key, error))  # type: ignore[misc]

    def delete(
        self, context: RequestContext, request: messages.DeleteShareGroupOffsetsRequest
    ) -> messages.DeleteShareGroupOffsetsResponse | Reply:
        response = messages.DeleteShareGroupOffsetsResponse
        if not context.may(Operation.DELETE, Resource.GROUP, request.group_id):
            return _refused(response, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refusal = self._groups.refusal_of_change(request.group_id, may_create=False)
        if refusal is not None:
            return response(error_code=refusal[0], error_message=refusal[1])
        group = self._groups.get(request.group_id)
        assert group is not None
        answer = response()
        gone: list[bytes] = []
        for asked in request.topics:
            cell = response.DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            answer.responses.append(cell)
            topic = self._core.cluster.topics.get(asked.topic_name)
            if not context.may(Operation.READ, Resource.TOPIC, asked.topic_name):
                _fail(cell, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif topic is None:
                _fail(cell, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.topic_id not in group.initialized:
                _fail(cell, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")
            else:
                cell.topic_id = topic.topic_id
                gone.append(topic.topic_id)
        return self._deleted(group, gone, answer) if gone else answer

    def _deleted(self, group: ShareGroup, topic_ids: list[bytes], answer: messages.DeleteShareGroupOffsetsResponse) -> Reply:
        """Remove the state first: what is listed as having state may have none, but not the other way round."""
        reply, wanted = Reply(), frozenset(topic_ids)

        def finish(error: ErrorCode) -> None:
            for cell in answer.responses:
                if error and cell.topic_id in wanted:
                    _fail(cell, error)
            reply.set(answer)

        def on_deleted(error: ErrorCode) -> None:
            if error:
                finish(error)
            else:
                self._groups.forget_topics(group.group_id, wanted).then(finish)

        keys = self._partitions.keys(group_id=group.group_id, topic_ids=wanted)
        self._partitions.delete(keys).then(on_deleted)
        return reply


def _refused(response: type[Response], error: ErrorCode) -> Response:
    return response(error_code=error, error_message=error.text)


def _fail(cell: Refusable, error: ErrorCode, text: str | None = None) -> None:
    cell.error_code, cell.error_message = error, text or error.text
