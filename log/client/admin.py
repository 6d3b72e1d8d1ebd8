"""Topics, groups and offsets: `interfaces.Admin` over a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from logflume.log.errors import InvalidInput, UnknownTopic
from logflume.log.interfaces import (
    GroupDescription,
    GroupMemberDescription,
    GroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    TopicDescription,
)
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, messages, tables
from logflume.log.records import TopicPartition

from .cluster import GROUP, Cluster, TopicInfo
from .loop import IoLoop
from .offsets import EARLIEST, LATEST, commit_offsets, fetch_committed, list_offsets
from .retry import with_retries
from .subscription import decode_assignment

T = TypeVar("T")

TIMEOUT_S = 60.0
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_SET, _DELETE = 0, 1
_DYNAMIC_TOPIC_CONFIG = 1
_VISIBLE_TIMEOUT_S = 15.0
_DEAD = "Dead"


class Admin:
    """See `interfaces.Admin`. Thread-safe; each call blocks until it is done."""

    def __init__(self, cluster: Cluster, loop: IoLoop) -> None:
        self._cluster = cluster
        self._loop = loop

    # topics

    def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> TopicDescription | None:
        """Create a topic and return it; then its partitions have leaders. `partitions`: -1 for the broker's `num.partitions`.

        None: whoever makes it may not describe it, so it was not waited for.

        Raises:
            KafkaError: TOPIC_ALREADY_EXISTS, INVALID_CONFIG and so on.
        """

        async def create() -> TopicDescription | None:
            await self._create_topics({name: NewTopic(partitions, configs or {}, replication_factor)}, may_exist=False)
            try:
                return _description((await self._when_visible([name]))[name])
            except KafkaError as error:
                if error.error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise
                return None  # the right to create does not bring that to describe, and the topic is there

        return self._run(create())

    def ensure_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> TopicDescription:
        """Create the topic if it does not exist; return it as it is."""
        return self.ensure_topics({name: NewTopic(partitions, configs or {})})[name]

    def ensure_topics(self, wanted: Mapping[str, NewTopic]) -> dict[str, TopicDescription]:
        """Create those of these topics that do not exist, by one request; return all as they are."""

        async def ensure() -> Mapping[str, TopicInfo]:
            await self._create_topics(wanted, may_exist=True)
            return await self._when_visible(wanted)

        return {name: _description(info) for name, info in self._run(ensure()).items()} if wanted else {}

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises UnknownName."""
        self._run(self._delete_topic(name))

    def create_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions of a topic to `total`."""
        topic = messages.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = messages.CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)

        async def create() -> None:
            response = await self._to_controller(request, lambda r: r.results[0].error_code)
            result = response.results[0]
            _check(result.error_code, result.error_message, topic=name)
            self._cluster.forget_topic(name)

            async def look() -> None:
                await self._cluster.refresh([name])
                info = self._cluster.topics.get(name)
                if info is None or len(info.partitions) < total or any(p.leader < 0 for p in info.partitions):
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, topic=name)

            await with_retries(look, timeout_s=_VISIBLE_TIMEOUT_S)

        self._run(create())

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; those starting with `__` or flagged internal only when asked for."""
        found = self._run(self._cluster.refresh(None))
        return sorted(t.name for t in found.values() if include_internal or not _is_internal(t))

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """Return partitions and ids. Raises UnknownName."""
        return self._run(self._describe_topics(list(names)))

    def find_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Return partitions and ids of those of these topics that exist, by one request."""
        found = self._run(self._cluster.refresh(names)) if names else {}
        return {name: _description(found[name]) for name in names if name in found}

    def topic_configs(self, name: str) -> dict[str, str]:
        """Return all configs of a topic, defaults included. Raises UnknownName."""
        configs = self._run(self._describe_configs([name]))[name]
        return {config.name: config.value for config in configs if config.value is not None}

    def broker_configs(self) -> dict[str, str]:
        """Return the configs of the controller, defaults included; takes the right to describe the cluster's configs."""

        async def ask() -> dict[str, list[messages.DescribeConfigsResponse.DescribeConfigsResourceResult]]:
            await self._cluster.refresh([])
            node = self._cluster.controller
            return await self._describe_configs([str(node)], kind=_BROKER_RESOURCE, node=node)

        (configs,) = self._run(ask()).values()
        return {config.name: config.value for config in configs if config.value is not None}

    def changed_topic_configs(self, name: str) -> dict[str, str]:
        """Return the configs that were set for a topic. Raises UnknownName."""
        configs = self._run(self._describe_configs([name]))[name]
        return {
            config.name: config.value
            for config in configs
            if config.value is not None and config.config_source == _DYNAMIC_TOPIC_CONFIG
        }

    def alter_topic_configs(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Set configs of a topic (None: back to the default); the others stay."""
        alterable = messages.IncrementalAlterConfigsRequest.AlterableConfig
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=name,
            configs=[
                alterable(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in configs.items()
            ],
        )

        async def alter() -> None:
            response = await self._to_controller(
                messages.IncrementalAlterConfigsRequest(resources=[resource]), lambda r: r.responses[0].error_code
            )
            _check(response.responses[0].error_code, response.responses[0].error_message, topic=name)

        self._run(alter())

    # offsets of partitions

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset each partition still holds."""
        found = self._run(list_offsets(self._cluster, self._cluster.channel, dict.fromkeys(partitions, EARLIEST)))
        return {tp: offset for tp, (offset, _) in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition], *, read_committed: bool = False) -> dict[TopicPartition, int]:
        """Return the high watermarks, or the last stable offsets with `read_committed`."""
        wanted = dict.fromkeys(partitions, LATEST)
        found = self._run(list_offsets(self._cluster, self._cluster.channel, wanted, read_committed=read_committed))
        return {tp: offset for tp, (offset, _) in found.items()}

    def offsets_for_time(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset whose timestamp is >= the given milliseconds (0 or more), None when there is none."""
        for tp, timestamp_ms in partitions.items():
            if timestamp_ms < 0:
                raise InvalidInput(f"{tp.topic}-{tp.partition}: expected a time of 0 ms or more, found {timestamp_ms}")
        found = self._run(list_offsets(self._cluster, self._cluster.channel, partitions))
        return {tp: None if offset < 0 else offset for tp, (offset, _) in found.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Move the log start offset of each partition up to the given offset (-1: to the end)."""
        self._run(self._delete_records(before))

    # groups

    def list_groups(self) -> list[str]:
        """Return the ids of all groups of all brokers, sorted."""
        return sorted(self._run(self._list_groups()))

    def describe_group(self, group_id: str) -> GroupDescription:
        """Return state, protocol and members; a group that does not exist has the state Dead."""
        return self._run(self._describe_group(group_id))

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its committed offsets."""

        async def delete() -> None:
            request = messages.DeleteGroupsRequest(groups_names=[group_id])
            response = await self.to_coordinator(group_id, request, lambda r: r.results[0].error_code)
            _check(response.results[0].error_code, f"group {group_id!r}")

        self._run(delete())

    def remove_group_members(self, group_id: str, instance_ids: Sequence[str]) -> None:
        """Take static members out of a group now, so that the others need not wait for their session timeouts.

        Members that are not there count as removed.
        """

        async def remove() -> None:
            identity = messages.LeaveGroupRequest.MemberIdentity
            members = [identity(member_id="", group_instance_id=instance_id) for instance_id in instance_ids]
            request = messages.LeaveGroupRequest(group_id=group_id, member_id="", members=members)
            response = await self.to_coordinator(group_id, request, lambda r: r.error_code)
            _check(response.error_code, f"group {group_id!r}")
            for member in response.members:
                if member.error_code != ErrorCode.UNKNOWN_MEMBER_ID:
                    _check(member.error_code, f"group {group_id!r}, instance {member.group_instance_id!r}")

        self._run(remove())

    def group_offsets(self, group_id: str, *, is_stable: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all committed offsets of a group; with `is_stable` open transactions on them are waited for."""
        found = self._run(fetch_committed(self._cluster, self._cluster.channel, group_id, None, is_stable=is_stable))
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def set_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set committed offsets of a group without members (state Empty or Dead); refused otherwise."""
        state = self.describe_group(group_id).state
        if state not in ("Empty", "Dead"):
            raise InvalidInput(f"group {group_id!r} is {state}: its offsets can be set only while it has no members")
        nobody = GroupMetadata(group_id, generation=-1, member_id="")

        def forget(_: object) -> None:
            self._cluster.forget_coordinator(GROUP, group_id)

        async def commit() -> None:
            await commit_offsets(self._cluster, self._cluster.channel, nobody, offsets)

        self._run(with_retries(commit, timeout_s=TIMEOUT_S, on_failure=forget))

    # anything

    def request(self, api: str, version: int | None = None, *, node: int | None = None, **fields: Any) -> Any:
        """Send any request of the protocol by name to a broker (`node`: its id; any if None); returns the decoded response.

        `version` is the highest to send (default: the highest both sides hold). Nested structures are attributes of
        the message class, e.g. `messages.MetadataRequest.MetadataRequestTopic(name="t")`. Raises UnknownName.
        """
        known = tables.api_named(api)
        message = getattr(messages, known.request.name)(**fields)
        max_version = 1 << 15 if version is None else version

        async def send() -> Any:
            if node is not None:
                await self._cluster.refresh([])
            return await self._cluster.channel.request(message, node=node, max_version=max_version)

        return self._run(send())

    async def to_coordinator(self, group_id: str, request: MessageBase, error_of: Callable[[Any], int]) -> Any:
        """Send a request to the group's coordinator; when `error_of(response)` says it moved or loads, find it and repeat."""

        async def attempt() -> Any:
            node = await self._cluster.coordinator(GROUP, group_id)
            response = await self._cluster.channel.request(request, node=node)
            error = KafkaError(error_of(response), f"group {group_id!r}")
            if error.number and error.is_retriable:
                raise error
            return response

        return await with_retries(
            attempt, timeout_s=TIMEOUT_S, on_failure=lambda _: self._cluster.forget_coordinator(GROUP, group_id)
        )

    def _run(self, awaitable: Awaitable[T]) -> T:
        async def run() -> T:
            return await awaitable

        return self._loop.run(run(), timeout_s=TIMEOUT_S + 5)

    async def _to_controller(self, request: MessageBase, error_of: Callable[[Any], int]) -> Any:
        async def attempt() -> Any:
            if self._cluster.controller < 0:
                await self._cluster.refresh([])
            node = self._cluster.controller if self._cluster.controller >= 0 else None
            response = await self._cluster.channel.request(request, node=node)
            error = KafkaError(error_of(response))
            if error.error in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                raise error
            return response

        def forget(_: object) -> None:
            self._cluster.controller = -1

        return await with_retries(attempt, timeout_s=TIMEOUT_S, on_failure=forget)

    async def _create_topics(self, wanted: Mapping[str, NewTopic], *, may_exist: bool) -> None:
        config_class = messages.CreateTopicsRequest.CreatableTopicConfig
        request = messages.CreateTopicsRequest(topics=[], timeout_ms=30_000)
        for name, new in wanted.items():
            if new.partitions < 1 and new.partitions != -1:
                raise InvalidInput(
                    f"topic {name!r}: expected 1 or more partitions, or -1 for the broker's number, found {new.partitions}"
                )
            topic = messages.CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=new.partitions,
                replication_factor=new.replication_factor,
                configs=[config_class(name=key, value=value) for key, value in new.configs.items()],
            )
            request.topics.append(topic)
        accepted = (0, ErrorCode.TOPIC_ALREADY_EXISTS) if may_exist else (0,)

        def error_of(response: messages.CreateTopicsResponse) -> int:
            return next((topic.error_code for topic in response.topics if topic.error_code not in accepted), 0)

        response = await self._to_controller(request, error_of)
        for topic in response.topics:
            if topic.error_code not in accepted:
                _check(topic.error_code, topic.error_message, topic=topic.name)

    async def _when_visible(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return topics that were made, once all their partitions have leaders."""
        wanted = list(names)

        async def look() -> dict[str, TopicInfo]:
            infos = await self._cluster.refresh(wanted)
            for name in wanted:
                if name not in infos or any(p.leader < 0 for p in infos[name].partitions):
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, topic=name)
            return {name: infos[name] for name in wanted}

        return await with_retries(look, timeout_s=_VISIBLE_TIMEOUT_S)

    async def _delete_topic(self, name: str) -> None:
        await self._cluster.topic(name)
        request = messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
        response = await self._to_controller(request, lambda r: r.responses[0].error_code)
        _check(response.responses[0].error_code, response.responses[0].error_message, topic=name)
        self._cluster.forget_topic(name)

    async def _describe_topics(self, names: list[str]) -> dict[str, TopicDescription]:
        for name in names:
            self._cluster.forget_topic(name)
        if names:
            await self._cluster.refresh(names)  # all together; those that are not told well are asked for again
        return {name: _description(await self._cluster.topic(name)) for name in names}

    async def _describe_configs(
        self, names: list[str], *, kind: int = _TOPIC_RESOURCE, node: int | None = None
    ) -> dict[str, list[messages.DescribeConfigsResponse.DescribeConfigsResourceResult]]:
        resource_class = messages.DescribeConfigsRequest.DescribeConfigsResource
        request = messages.DescribeConfigsRequest(
            resources=[resource_class(resource_type=kind, resource_name=n, configuration_keys=None) for n in names]
        )
        if not names:
            return {}
        response = await self._cluster.channel.request(request, node=node)
        for result in response.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await self._cluster.refresh(None)
                raise UnknownTopic(result.resource_name, self._cluster.topics)
            is_refused = result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            cause = (
                "its configs take the right DescribeConfigs (operation describe_configs)" if is_refused else result.error_message
            )
            _check(result.error_code, cause, topic=result.resource_name)
        return {result.resource_name: result.configs for result in response.results}

    async def _delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        topic_class = messages.DeleteRecordsRequest.DeleteRecordsTopic
        partition_class = messages.DeleteRecordsRequest.DeleteRecordsPartition
        for tp, offset in before.items():
            part = topic_class(name=tp.topic, partitions=[partition_class(partition_index=tp.partition, offset=offset)])
            request = messages.DeleteRecordsRequest(topics=[part], timeout_ms=30_000)

            async def attempt(tp: TopicPartition = tp, request: messages.DeleteRecordsRequest = request) -> None:
                response = await self._cluster.channel.request(request, node=await self._cluster.leader(tp))
                result = response.topics[0].partitions[0]
                _check(result.error_code, None, topic=tp.topic, partition=tp.partition)

            def forget(_: object, tp: TopicPartition = tp) -> None:
                self._cluster.forget_topic(tp.topic)

            await with_retries(attempt, timeout_s=TIMEOUT_S, on_failure=forget)

    async def _list_groups(self) -> set[str]:
        response = await self._cluster.channel.request(messages.MetadataRequest(topics=[], allow_auto_topic_creation=False))
        self._cluster.transport.learn_nodes({b.node_id: (b.host, b.port) for b in response.brokers})
        groups: set[str] = set()
        for broker in response.brokers:
            listed = await self._cluster.channel.request(messages.ListGroupsRequest(), node=broker.node_id)
            _check(listed.error_code, None)
            groups.update(group.group_id for group in listed.groups)
        return groups

    async def _describe_group(self, group_id: str) -> GroupDescription:
        """Ask for a classic group first: older brokers know no other."""
        request = messages.DescribeGroupsRequest(groups=[group_id])
        response = await self.to_coordinator(group_id, request, lambda r: r.groups[0].error_code)
        group = response.groups[0]
        is_unknown = group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD
        if is_unknown:
            return await self._describe_later_group(group_id)
        _check(group.error_code, f"group {group_id!r}")
        members = tuple(
            GroupMemberDescription(
                m.member_id, m.group_instance_id, m.client_id, m.client_host, tuple(decode_assignment(m.member_assignment)[0])
            )
            for m in group.members
        )
        return GroupDescription(group_id, group.group_state, group.protocol_data, members)

    async def _describe_later_group(self, group_id: str) -> GroupDescription:
        """Ask for a group of the kinds that came later: the consumer protocol, then share groups."""
        for request_class in (messages.ConsumerGroupDescribeRequest, messages.ShareGroupDescribeRequest):
            try:
                response = await self.to_coordinator(
                    group_id, request_class(group_ids=[group_id]), lambda r: r.groups[0].error_code
                )
            except KafkaError as error:
                if error.error is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                continue
            group = response.groups[0]
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                continue
            _check(group.error_code, f"group {group_id!r}")
            members = tuple(
                GroupMemberDescription(
                    m.member_id,
                    getattr(m, "instance_id", None),
                    m.client_id,
                    m.client_host,
                    tuple(TopicPartition(t.topic_name, p) for t in m.assignment.topic_partitions for p in t.partitions),
                )
                for m in group.members
            )
            return GroupDescription(group_id, group.group_state, group.assignor_name, members)
        return GroupDescription(group_id, _DEAD, "", ())


def _description(info: TopicInfo) -> TopicDescription:
    return TopicDescription(info.name, info.topic_id, len(info.partitions), _is_internal(info))


def _is_internal(topic: TopicInfo) -> bool:
    return topic.is_internal or topic.name.startswith("__")


def _check(error_code: int, message: str | None, *, topic: str | None = None, partition: int | None = None) -> None:
    if error_code:
        raise KafkaError(error_code, message, topic=topic, partition=partition)
