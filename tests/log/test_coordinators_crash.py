"""Power cuts under the coordinators' journals: what was answered about offsets and transactions is so after the restart.

With clients of transaction version 2 also what a reader has seen of them, whatever part of it was on disk.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import as_reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage import PartitionLog
from logflume.log.storage.testing.disk import PowerCut

from ._simulated_broker import LyingFlusher, SimulatedBroker
from ._wire import batch, produce_request

TOPIC, PARTITIONS, GROUPS = "t", 2, ("one", "two", "three")
Committed = dict[tuple[str, int], int]


class CoordinatedBroker(SimulatedBroker):
    """A simulated broker with its coordinators."""

    def start(self) -> None:
        now_ms = self.time.now_ms if hasattr(self, "time") else 0
        super().start()
        self.time.now_ms = now_ms  # the world's clock does not go back
        self.coordinators = Coordinators(self.core)
        self.handlers = Handlers(self.core, coordinators=self.coordinators.handlers(), admission=self.coordinators.transactions)


class Model:
    """Commits offsets, plain and in transactions, and knows what must be there; one request at most is in doubt after a cut."""

    def __init__(self, broker: CoordinatedBroker, rng: random.Random) -> None:
        self.broker, self.rng = broker, rng
        self.acked: Committed = {}
        self.in_doubt: Committed = {}
        self.records: list[bytes] = []
        self.records_in_doubt: list[bytes] = []
        self.number = 0
        assert broker.create(TOPIC, PARTITIONS).error_code == 0
        self.commit()  # makes the journals' topics
        self.transaction()

    def run(self) -> None:
        while True:
            self.rng.choice((self.commit, self.commit, self.transaction))()

    def commit(self) -> None:
        self.number += 1
        group, index = self.rng.choice(GROUPS), self.rng.randrange(PARTITIONS)
        request = messages.OffsetCommitRequest
        topic = request.OffsetCommitRequestTopic(
            name=TOPIC,
            partitions=[request.OffsetCommitRequestPartition(partition_index=index, committed_offset=self.number)],
        )
        self.in_doubt = {(group, index): self.number}
        answer = self.broker.call(request(group_id=group, topics=[topic]), 8)
        assert answer.topics[0].partitions[0].error_code == 0
        self.acked.update(self.in_doubt)
        self.in_doubt = {}

    def transaction(self) -> None:
        self.number += 1
        group, is_commit = self.rng.choice(GROUPS), self.rng.random() < 0.7
        owner, value = self._begin(), b"%d" % self.number
        self._add_partition(owner)
        data = batch(value, base_sequence=0, is_transactional=True, **owner)
        produced = self.broker.call(produce_request(TOPIC, data, transactional_id="x"), 9)
        assert produced.responses[0].partition_responses[0].error_code == 0
        self._commit_in_transaction(owner, group)
        offsets = {(group, index): self.number for index in range(PARTITIONS)}
        if is_commit:
            self.in_doubt, self.records_in_doubt = offsets, [value]
        ended = self.broker.call(messages.EndTxnRequest(transactional_id="x", committed=is_commit, **owner), 3)
        assert ended.error_code == 0
        if is_commit:
            self.acked.update(offsets)
            self.records.append(value)
        self.in_doubt, self.records_in_doubt = {}, []

    def _begin(self) -> dict[str, int]:
        granted = self.broker.call(messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
        assert granted.error_code == 0
        return {"producer_id": granted.producer_id, "producer_epoch": granted.producer_epoch}

    def _add_partition(self, owner: dict[str, int]) -> None:
        add = messages.AddPartitionsToTxnRequest
        added = self.broker.call(
            add(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=owner["producer_id"],
                v3_and_below_producer_epoch=owner["producer_epoch"],
                v3_and_below_topics=[add.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
            ),
            3,
        )
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0

    def _commit_in_transaction(self, owner: dict[str, int], group: str) -> None:
        offsets = messages.AddOffsetsToTxnRequest(transactional_id="x", group_id=group, **owner)
        assert self.broker.call(offsets, 3).error_code == 0
        answer = self.broker.call(self._offsets_request(owner, group), 3)
        assert {each.error_code for each in answer.topics[0].partitions} == {0}

    def _offsets_request(self, owner: dict[str, int], group: str) -> messages.TxnOffsetCommitRequest:
        request = messages.TxnOffsetCommitRequest
        partitions = [
            request.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=self.number)
            for index in range(PARTITIONS)
        ]
        topic = request.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)
        return request(transactional_id="x", group_id=group, topics=[topic], **owner)

    def check(self) -> None:
        """Compare the restarted broker with the model; take over what the request in doubt left."""
        self.broker.time.advance(60_001)  # a transaction that was open is aborted
        found = {key: offset for group in GROUPS for key, offset in self._offsets(group).items()}
        is_done = bool(self.in_doubt) and all(found.get(key) == offset for key, offset in self.in_doubt.items())
        expected = {**self.acked, **self.in_doubt} if is_done else self.acked
        assert found == expected, "committed offsets are those that were acknowledged"
        self.acked = expected
        assert self._visible() == self.records + (self.records_in_doubt if is_done else []), "records and offsets go together"
        self.records = self._visible()
        self.in_doubt, self.records_in_doubt = {}, []

    def _offsets(self, group: str) -> Committed:
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(PARTITIONS)))
        answer = self.broker.call(request(group_id=group, topics=[topic], require_stable=True), 7)
        partitions: list[Any] = answer.topics[0].partitions
        assert {each.error_code for each in partitions} == {ErrorCode.NONE}
        return {(group, each.partition_index): each.committed_offset for each in partitions if each.committed_offset >= 0}

    def _visible(self) -> list[bytes]:
        partition = self.broker.core.partition(TOPIC, 0)
        assert partition is not None
        log = partition.log
        assert log.last_stable_offset == log.log_end_offset, "no transaction is left open"
        return [value for _, value in self._uncontrolled(0)]

    def _uncontrolled(self, index: int) -> list[tuple[int, bytes]]:
        """Return offsets and values of a partition without its markers and without what was aborted."""
        partition = self.broker.core.partition(TOPIC, index)
        assert partition is not None
        log = partition.log
        aborted = log.aborted_transactions(0, log.log_end_offset)
        hidden = {offset for each in aborted for offset in range(each.first_offset, each.last_offset)}
        values = self.broker.values(TOPIC, index)
        controls = {header.base_offset for header, _ in log.headers(0) if header.is_control}
        found = enumerate(values)
        return [(offset, value) for offset, value in found if value is not None and offset not in hidden | controls]


class AnyOrderFlusher:
    """Flushes what waits when told to, one log after the other in any order, as threads do."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.waiting: dict[PartitionLog, list[Any]] = {}

    def request(self, log: PartitionLog, callback: Any) -> None:
        if log.durable_offset >= log.log_end_offset:
            callback(None)
        else:
            self.waiting.setdefault(log, []).append(callback)

    def step(self) -> None:
        log = self._rng.choice(list(self.waiting))
        callbacks = self.waiting.pop(log)
        log.flush()
        for callback in callbacks:
            callback(None)

    def together(self) -> None:
        """Flush what waits now, at the same time; what it makes others ask for waits for the next time."""
        waiting, self.waiting = self.waiting, {}
        for log in waiting:
            log.flush()
        for callback in [each for callbacks in waiting.values() for each in callbacks]:
            callback(None)


class GroupCommitBroker(CoordinatedBroker):
    """A broker that answers when all is on disk that the answer speaks of, and not before. `look` is called at each step."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.flusher, self.look = AnyOrderFlusher(rng), lambda: None
        super().__init__(path, flusher=self.flusher)

    def start(self) -> None:
        self.flusher.waiting.clear()
        super().start()
        self.rest()

    def rest(self) -> None:
        while self.flusher.waiting:
            self.flusher.step()
            self.look()

    def call(self, message: Any, version: int) -> Any:
        answer = as_reply(self.handlers.handle(RequestContext(message.api_key, version, 1, "test", "here", 1), message))
        self.rest()
        return answer.value


class ModelOfVersionTwo(Model):
    """One producer whose transactions write to two partitions and commit offsets; `seen`: what readers have had."""

    broker: GroupCommitBroker

    def __init__(self, broker: GroupCommitBroker, rng: random.Random) -> None:
        self.owner: dict[str, int] | None = None
        self.seen: set[bytes] = set()
        self._seen_to = [0] * PARTITIONS
        super().__init__(broker, rng)
        broker.look = self._look

    def transaction(self) -> None:
        self.number += 1
        group, is_commit = self.rng.choice(GROUPS), self.rng.random() < 0.7
        owner, value = self.owner or self._begin(), b"%d" % self.number
        self.owner = None
        batches = [batch(value, base_sequence=0, is_transactional=True, **owner)] * PARTITIONS
        offsets = {(group, index): self.number for index in range(PARTITIONS)}
        produced = self.broker.call(produce_request(TOPIC, *batches, transactional_id="x"), 12)
        assert {each.error_code for each in produced.responses[0].partition_responses} == {0}
        self._commit_in_transaction(owner, group)
        if is_commit:
            self.in_doubt, self.records_in_doubt = offsets, [value]
        ended = self.broker.call(messages.EndTxnRequest(transactional_id="x", committed=is_commit, **owner), 5)
        assert ended.error_code == 0
        self.owner = {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
        if is_commit:
            self.acked.update(offsets)
            self.records.append(value)
        self.in_doubt, self.records_in_doubt = {}, []

    def _begin(self) -> dict[str, int]:
        request = messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        granted = self.broker.call(request, 5)
        if granted.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            granted = self.broker.call(request, 5)
        assert granted.error_code == 0
        return {"producer_id": granted.producer_id, "producer_epoch": granted.producer_epoch}

    def _commit_in_transaction(self, owner: dict[str, int], group: str) -> None:
        answer = self.broker.call(self._offsets_request(owner, group), 5)
        assert {each.error_code for each in answer.topics[0].partitions} == {0}

    def check(self) -> None:
        if self.rng.random() < 0.5:  # else its time runs out
            self.owner = self._begin()
        self.broker.time.advance(60_001)
        self.broker.rest()
        super().check()
        assert set(self.records) >= self.seen, "what a reader has seen is committed"
        assert self._committed(0) == self._committed(1) == self.records, "all of its partitions, or none"

    def _look(self) -> None:
        """Read on where something has become visible."""
        for index in range(PARTITIONS):
            partition = self.broker.core.partition(TOPIC, index)
            if partition is not None and partition.log.last_stable_offset > self._seen_to[index]:
                self._seen_to[index] = partition.log.last_stable_offset
                self.seen.update(self._committed(index))

    def _committed(self, index: int) -> list[bytes]:
        """Return what a read_committed reader has of a partition."""
        partition = self.broker.core.partition(TOPIC, index)
        if partition is None:
            return []
        return [value for offset, value in self._uncontrolled(index) if offset < partition.log.last_stable_offset]


def run_with_power_cuts(broker: CoordinatedBroker, seed: int) -> None:
    rng = random.Random(seed)
    cut_often(broker, Model(broker, rng), rng)


def cut_often(broker: CoordinatedBroker, model: Model, rng: random.Random) -> None:
    for _ in range(3):
        broker.disk.cut_at_step = broker.disk.steps + rng.randrange(1, 250)
        with pytest.raises(PowerCut):
            model.run()
        broker.power_cut(rng)
        model.check()
    broker.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_loses_no_offset_and_tears_no_transaction(tmp_path: Path, seed: int) -> None:
    run_with_power_cuts(CoordinatedBroker(tmp_path), seed)


def test_a_commit_waits_for_the_disk_twice(tmp_path: Path) -> None:
    broker = GroupCommitBroker(tmp_path, random.Random(0))
    model = ModelOfVersionTwo(broker, random.Random(0))
    owner = model._begin()

    def rounds(*requests: tuple[Any, int]) -> int:
        answers = [
            as_reply(broker.handlers.handle(RequestContext(request.api_key, version, 1, "test", "here", 1), request))
            for request, version in requests
        ]
        for count in range(10):
            if all(answer.is_done for answer in answers):
                return count
            broker.flusher.together()
        raise AssertionError("it is never answered")

    batches = [batch(b"v", base_sequence=0, is_transactional=True, **owner)] * PARTITIONS
    produced = produce_request(TOPIC, *batches, transactional_id="x"), 12
    assert rounds(produced, (model._offsets_request(owner, "one"), 5)) == 1
    assert rounds((messages.EndTxnRequest(transactional_id="x", committed=True, **owner), 5)) == 1
    assert model._committed(0)[-1] == model._committed(1)[-1] == b"v"
    broker.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_transaction_ends_in_all_its_partitions_at_once_whichever_is_on_disk_first(tmp_path: Path, seed: int) -> None:
    broker = GroupCommitBroker(tmp_path, random.Random(seed))
    model = ModelOfVersionTwo(broker, random.Random(seed))
    seen: list[set[int]] = []
    for _ in range(10):
        broker.look = lambda: seen.append(
            {broker.core.partitions[TOPIC, index].log.last_stable_offset for index in range(PARTITIONS)}
        )
        model.transaction()
    assert {len(ends) for ends in seen} == {1}
    assert len(set.union(*seen)) == 11
    broker.close()


@pytest.mark.parametrize("seed", range(25))
def test_whatever_part_of_a_commit_is_on_disk_it_is_whole_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker = GroupCommitBroker(tmp_path, rng)
    cut_often(broker, ModelOfVersionTwo(broker, rng), rng)


def test_coordinators_that_answer_before_their_journal_is_durable_are_caught(tmp_path: Path) -> None:
    caught = 0
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        try:
            run_with_power_cuts(CoordinatedBroker(tmp_path / str(seed), flusher=LyingFlusher()), seed)
        except AssertionError:
            caught += 1
    assert caught >= 5, "by chance a cut may leave everything, but not most times"
