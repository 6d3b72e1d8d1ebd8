"""The state that all handlers share: cluster metadata, open partitions, configs, clock, timers, flushing.

One thread. What is appended becomes readable when it is durable: `flush` asks for that, and everyone who waits on the
partition (long polls) is woken when it happened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from logflume.log.batch import Codec
from logflume.log.errors import LogflumeError, StorageError
from logflume.log.protocol import ErrorCode, KafkaError
from logflume.log.storage import DataDir, Disk, PartitionLog

from .incoming import forced_codec
from .ports import Address, Clock, Demand, FlushCallback, Flusher, Offload, SchemaFinder, Timers, Waiter, do_at_once
from .quotas.store import make_quotas
from .schema_ids import SchemaJudge, demands_of
from .security.acl_store import make_acl_store
from .security.tokens import DelegationTokens
from .security.users import Users
from .settings.lookup import BrokerConfig
from .state.cluster import ClusterState
from .state.diskspace import DiskSpace, default_min_free_bytes
from .state.features import Features
from .state.metadata import (
    BrokerConfigsSet,
    ClusterConfigsSet,
    DeletionFinished,
    GroupConfigsSet,
    Topic,
    TopicConfigsSet,
)
from .state.troubles import Troubles
from .telemetry import ClientTelemetry, SubscriptionStore
from .topic_rules import TopicRules
from .turns.slices import Slices, Steps

LEADER_EPOCH = 0
"""Leader epoch of every partition: without replicas the leader never changes."""

FIRST_CLUSTER_CONFIGS = ("min.insync.replicas",)
"""What a new cluster fixes as the default of all its brokers (KIP-966: Kafka 4.1 and later list it with that source)."""

MAX_GROUPS_WITH_CONFIGS = 10_000
PARALLEL_FROM = 2
TOPICS_AT_A_TIME = 50
"""That get their configs anew in one slice."""
PARTITIONS_AT_A_TIME = 100
"""In which retention looks for what is old in one slice."""
DISK_THREADS = 16

_log = logging.getLogger("logflume.broker")
_T = TypeVar("_T")
_R = TypeVar("_R")


class Partition:
    """An open partition, the codec that its topic forces, the schemas it demands, and who waits for it."""

    __slots__ = ("demands", "forced_codec", "log", "waiters")

    def __init__(self, log: PartitionLog, codec: Codec | None, demands: tuple[Demand, ...] = ()) -> None:
        self.log, self.forced_codec, self.demands = log, codec, demands
        self.waiters: dict[Waiter, None] = {}

    def wake(self) -> None:
        """Wake everyone who waits for new durable data or a new last stable offset."""
        if self.waiters:
            for waiter in list(self.waiters):
                waiter.wake()


class Core:
    """Shared state of the broker.

    Invariant: `partitions` holds an open log for each partition of each topic in `cluster`, but those that `troubles` tells of.
    """

    def __init__(
        self,
        data_dir: DataDir,
        *,
        disk: Disk,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        flusher: Flusher,
        addresses: Mapping[str, Address],
        random_bytes: Callable[[int], bytes] = os.urandom,
        offload: Offload = do_at_once,
        next_turn: Callable[[Callable[[], None]], object] | None = None,
        disk_threads: int = DISK_THREADS,
        make_schema_finder: Callable[[], SchemaFinder] | None = None,
    ) -> None:
        """Open every partition; finish deletions that were interrupted.

        Args:
            addresses: listener name -> address told to clients of that listener; filled in by the shell as it binds.
            offload: does elsewhere what takes long; at once where there is no other thread.
            next_turn: has a function called in the next turn of the loop; without a loop nothing is done in slices.
            make_schema_finder: makes what asks the registry about schemas, for topics that demand them; None: there is none.
            disk_threads: how many logs are opened, closed or deleted at a time; 1 for a disk that is not thread-safe.

        Raises StorageError, CorruptLog: cluster.json or an internal topic cannot be read; other partitions are offline then.
        """
        self._disk, self._disk_threads = disk, disk_threads
        self.data_dir, self.config, self.clock, self.timers = data_dir, config, clock, timers
        self.addresses, self._flusher, self.random_bytes = addresses, flusher, random_bytes
        self.offload, self.slices = offload, Slices(next_turn)
        self.schemas = SchemaJudge(make_schema_finder, clock=clock, offload=offload)
        self.node_id, self.cluster_id = data_dir.node_id, data_dir.cluster_id
        self.cluster = ClusterState(
            os.path.join(data_dir.path, "cluster.json"),
            disk,
            first_cluster_configs={name: config.text(name) for name in FIRST_CLUSTER_CONFIGS},
            offload=offload,
        )
        config.set_dynamic(self.cluster.broker_configs, cluster=self.cluster.cluster_configs)
        self.tokens = DelegationTokens(self.cluster, config.text("delegation.token.secret.key"), random_bytes=random_bytes)
        self.users = Users(self.cluster, random_bytes=random_bytes)
        self.disk_space = DiskSpace(self.free_bytes, self._min_free_bytes)
        self.acls = make_acl_store(config, self.cluster)
        self.authorizer = None if self.acls is None else self.acls.authorizer
        self.client_metrics = SubscriptionStore(self.cluster)
        self.telemetry = ClientTelemetry(
            self.client_metrics, clock, random_bytes, max_bytes=lambda: config.number("telemetry.max.bytes")
        )
        self.features = Features(self.cluster)
        self.quotas = make_quotas(config, self.cluster, clock)
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.topic_listeners: list[Callable[[Collection[str]], None]] = []
        """Called with the names of topics that were deleted."""
        self.mended_listeners: list[Callable[[PartitionLog], None]] = []
        """Told of logs that can be read again, or for the first time since the start."""
        self.topic_rules = TopicRules(self.cluster, config, self.schemas, count_partitions=lambda: len(self.partitions))
        self._is_dropping = False
        self.troubles = Troubles()
        for topic in list(self.cluster.deleting):
            try:
                self._delete_logs(topic)
            except StorageError as error:
                _log.error("topic %s is deleted, but not its files; the next start tries again: %s", topic.name, error)
        self._check_unknown_logs()
        for topic in self.cluster.topics.values():
            self._open_all(topic)

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get((topic, index))

    def missing(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that `partition` does not find: offline, or not there at all."""
        is_offline = (topic, index) in self.troubles.by_partition
        return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def has_partition(self, topic: str, index: int) -> bool:
        """Say whether there is such a partition, even if it cannot be used now."""
        found = self.cluster.topics.get(topic)
        return found is not None and 0 <= index < found.partition_count

    def _check_unknown_logs(self) -> None:
        """Remove empty logs that belong to no topic: an unfinished creation, which comes before the topic is in cluster.json.

        Raises StorageError: one with records, whose metadata are lost, or which was put there by hand.
        """
        deleting = {topic.name for topic in self.cluster.deleting}
        for (topic, index), directory in self.data_dir.partitions().items():
            known = self.cluster.topics.get(topic)
            if (known is not None and index < known.partition_count) or topic in deleting:
                continue
            if self.data_dir.holds_records(topic, index):
                raise StorageError(
                    f"{directory} is the log of a partition that cluster.json does not know; restore cluster.json from a backup, "
                    "or move the log out of the data directory"
                )
            if not self.data_dir.remove_unfinished(topic, index):
                _log.warning("%s is not a log of this broker; it is left alone", directory)

    def new_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Return a topic that was checked and is still to be made."""
        return Topic(name, self.random_bytes(16), partition_count, dict(configs))

    def set_topic_configs(self, topic: Topic, configs: Mapping[str, str]) -> Steps:
        """Replace a topic's own configs, which were checked, durably; they apply at once. Raises StorageError, as those below."""
        yield from self.cluster.later(TopicConfigsSet(topic.topic_id, configs))
        changed = self.cluster.by_id.get(topic.topic_id)
        if changed is not None:
            self._apply_configs(changed)

    def check_broker_configs(self, configs: Mapping[str, str], *, is_default: bool) -> None:
        """Raise KafkaError INVALID_CONFIG if these cannot be the dynamic configs of this broker, or the cluster's defaults."""
        own = self.cluster.broker_configs if is_default else configs
        self.config.check_dynamic(own, cluster=configs if is_default else self.cluster.cluster_configs)

    def set_broker_configs(self, configs: Mapping[str, str]) -> Steps:
        """Replace the dynamic configs of this broker, which were checked; they apply at once, to topics one after the other."""
        yield from self.cluster.later(BrokerConfigsSet(configs))
        yield from self._dynamic_configs_changed()

    def set_cluster_configs(self, configs: Mapping[str, str]) -> Steps:
        """Replace the dynamic configs of all brokers, which were checked; they apply as those of `set_broker_configs`."""
        yield from self.cluster.later(ClusterConfigsSet(configs))
        yield from self._dynamic_configs_changed()

    def _dynamic_configs_changed(self) -> Steps:
        self.config.set_dynamic(self.cluster.broker_configs, cluster=self.cluster.cluster_configs)
        for number, name in enumerate(list(self.cluster.topics), start=1):
            topic = self.cluster.topics.get(name)  # as it is now: others change topics between two slices
            if topic is not None:
                self._apply_configs(topic)
            if number % TOPICS_AT_A_TIME == 0:
                yield None

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """Return the configs that a group has of its own, also when there is no such group yet."""
        return self.cluster.group_configs.get(group_id, {})

    def check_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Raise KafkaError if a group may not have these configs."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "expected the id of a group, found an empty name")
        if configs and group_id not in self.cluster.group_configs and len(self.cluster.group_configs) >= MAX_GROUPS_WITH_CONFIGS:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{MAX_GROUPS_WITH_CONFIGS} groups have configs of their own; delete those of another group first",
            )
        self.config.check_group(configs)

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> Steps:
        """Replace a group's own configs, which were checked; they apply at once."""
        yield from self.cluster.later(GroupConfigsSet(group_id, configs))

    def tell_deleted(self, names: Collection[str]) -> None:
        """Tell those who keep something about topics that these are gone."""
        for listener in self.topic_listeners:
            listener(names)

    def flush(self, partition: Partition, callback: FlushCallback) -> None:
        """Call back when everything appended so far is durable (None) or cannot be (the error); wakes the long polls."""

        def done(error: Exception | None) -> None:
            if error is not None:
                _log.error("cannot flush %s-%d: %s", partition.log.topic, partition.log.partition, error)
            try:
                callback(error)
                partition.wake()
            except Exception:  # noqa: BLE001 - a fault here must not keep others from hearing that their data is durable
                _log.exception("after the flush of %s-%d", partition.log.topic, partition.log.partition)

        self._flusher.request(partition.log, done)

    def free_bytes(self) -> int:
        """Bytes left on the file system of the data directory."""
        return self._disk.free_bytes(self.data_dir.path)

    def _min_free_bytes(self) -> int:
        least = self.config.number("logflume.disk.min.free.bytes")
        return least if least >= 0 else default_min_free_bytes(self._disk.total_bytes(self.data_dir.path))

    def run_retention(self) -> None:
        """Drop what is too old or too much, in every partition, in slices; while that is under way another call does nothing."""
        if not self._is_dropping:
            self._is_dropping = True
            self.slices.run(self._drop_old(list(self.partitions.items())))

    def _drop_old(self, partitions: Sequence[tuple[tuple[str, int], Partition]]) -> Steps:
        now_ms = self.clock.wall_ms()
        try:
            for number, (key, partition) in enumerate(partitions, start=1):
                if number % PARTITIONS_AT_A_TIME == 0:
                    yield None
                if self.partitions.get(key) is not partition:
                    continue  # deleted meanwhile
                try:
                    if partition.log.apply_retention(now_ms):
                        yield None  # it has deleted files
                except LogflumeError as error:
                    _log.error("retention of %s-%d: %s", partition.log.topic, partition.log.partition, error)
        finally:
            self._is_dropping = False

    def close(self) -> None:
        """Checkpoint and close every log, so that the next start scans nothing."""
        self.for_logs(_close, [partition.log for partition in self.partitions.values()])
        self.partitions.clear()

    def opener(self, topic: Topic, *, is_new: bool) -> Callable[[int], PartitionLog]:
        """Return what opens a partition of a topic, in any thread."""
        config, now_ms, topic_id = self.config.log_config(topic.configs), self.clock.wall_ms(), topic.topic_id.hex()

        def open_one(index: int) -> PartitionLog:
            return self.data_dir.open_partition(topic.name, index, topic_id=topic_id, config=config, now_ms=now_ms, is_new=is_new)

        return open_one

    def _open_all(self, topic: Topic) -> None:
        """Open all partitions of a topic; one that cannot be is offline. Raises StorageError for an internal topic."""
        open_one = self.opener(topic, is_new=False)

        def try_one(index: int) -> PartitionLog | StorageError:
            try:
                return open_one(index)
            except StorageError as error:
                return error

        for index, log in enumerate(self.for_logs(try_one, range(topic.partition_count))):
            if not isinstance(log, StorageError):
                self.take_in(topic, index, [log])
            elif topic.is_internal:
                raise log
            else:
                self._note_trouble((topic.name, index), log)

    def take_in(self, topic: Topic, first: int, logs: Sequence[PartitionLog]) -> None:
        """Begin to serve logs of a topic's partitions from `first` on."""
        codec, demands = self._forced_codec(topic), self._demands(topic)
        for index, log in enumerate(logs, start=first):
            known = self.partitions.get((topic.name, index))
            if known is None:
                self.partitions[topic.name, index] = Partition(log, codec, demands)
            else:
                known.log = log
            self.troubles.forget((topic.name, index))
            if log.recovery.truncated_bytes:
                _log.warning(
                    "%s-%d: cut a torn tail of %d bytes at %s:%d",
                    topic.name, index, log.recovery.truncated_bytes, log.recovery.truncated_file, log.recovery.truncated_position,
                )  # fmt: skip

    # -- partitions in trouble

    def _note_trouble(self, key: tuple[str, int], error: Exception) -> None:
        if self.troubles.note(key, str(error), self.clock.wall_ms()):
            _log.error("%s-%d cannot be used: %s", *key, error)

    def mendable(self) -> list[tuple[str, int]]:
        """Return the partitions in trouble that are to be opened again now."""
        for key, partition in self.partitions.items():
            if partition.log.has_failed and key not in self.troubles.by_partition:
                self._note_trouble(key, partition.log.failure or StorageError("it has failed"))
        due = self.troubles.due(self.clock.wall_ms())
        return [key for key in due if key not in self.partitions or self.partitions[key].log.is_settled]

    def reopener(self, key: tuple[str, int]) -> Callable[[], PartitionLog]:
        """Return what opens a partition in trouble again, for any thread; a failed log is closed first. Raises StorageError."""
        topic, failed = self.cluster.topics[key[0]], self.partitions.get(key)
        open_one = self.opener(topic, is_new=False)

        def reopen() -> PartitionLog:
            if failed is not None:
                failed.log.close()
            return open_one(key[1])

        return reopen

    def mended(self, key: tuple[str, int], topic_id: bytes, outcome: PartitionLog | StorageError) -> None:
        """Take back a partition that was opened again, or note that it could not be."""
        topic = self.cluster.topics.get(key[0])
        is_there = topic is not None and topic.topic_id == topic_id
        if isinstance(outcome, StorageError):
            if is_there:
                self._note_trouble(key, outcome)
            return
        if topic is None or not is_there:
            outcome.abandon()
            return
        self.take_in(topic, key[1], [outcome])
        self._apply_configs(topic)
        _log.warning("%s-%d can be used again", *key)
        for listener in self.mended_listeners:
            listener(outcome)
        self.partitions[key].wake()

    def _apply_configs(self, topic: Topic) -> None:
        config = self.config.log_config(topic.configs)
        codec, demands = self._forced_codec(topic), self._demands(topic)
        for index in range(topic.partition_count):
            partition = self.partitions.get((topic.name, index))
            if partition is not None:
                partition.log.config, partition.forced_codec, partition.demands = config, codec, demands

    def _topic_text(self, topic: Topic, name: str) -> str:
        value = self.config.lookup_topic(name, topic.configs).value
        assert value is not None, "it has a default"
        return value

    def _forced_codec(self, topic: Topic) -> Codec | None:
        return forced_codec(self._topic_text(topic, "compression.type"))

    def _demands(self, topic: Topic) -> tuple[Demand, ...]:
        return demands_of(topic.name, lambda name: self._topic_text(topic, name))

    def take_out(self, topic: Topic) -> list[Callable[[], None]]:
        """Serve the partitions of a deleted topic no more; return what deletes their logs, open or not, in any thread."""
        topic_id = topic.topic_id.hex()
        deletions: list[Callable[[], None]] = []
        for index in range(topic.partition_count):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and partition.log.topic_id == topic_id:
                del self.partitions[topic.name, index]
                partition.wake()
                deletions.append(partial(self.data_dir.delete_partition, partition.log))
            else:
                deletions.append(partial(self.data_dir.delete_directory, topic.name, index, topic_id=topic_id))
            if topic.name not in self.cluster.topics:
                self.troubles.forget((topic.name, index))
        return deletions

    def _delete_logs(self, topic: Topic) -> None:
        """Delete the logs of a topic that is listed as deleted. Raises StorageError."""
        self.for_logs(lambda delete: delete(), self.take_out(topic))
        self.cluster.now(DeletionFinished(frozenset({topic.topic_id})))

    def for_logs(self, function: Callable[[_T], _R], items: Sequence[_T], *, threads: int = DISK_THREADS) -> list[_R]:
        """Open, close or delete many logs at the same time: each costs several fsyncs, which the file system commits together."""
        if len(items) < PARALLEL_FROM or self._disk_threads == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(threads, self._disk_threads)) as pool:
            return list(pool.map(function, items))


def _close(log: PartitionLog) -> None:
    try:
        log.close()
    except LogflumeError as error:
        _log.error("cannot close %s-%d: %s", log.topic, log.partition, error)
