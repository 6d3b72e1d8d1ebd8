"""Power cuts at any write of the broker, and full disks: what was answered is there after a restart, nothing half-done is."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logflume.log.protocol import ErrorCode, messages
from logflume.log.storage.testing.disk import PowerCut

from ._simulated_broker import LyingFlusher, SimulatedBroker
from ._wire import batch


@dataclass
class _Topic:
    """What was acknowledged of a topic: the values of each partition in order of offset."""

    topic_id: bytes
    values: list[list[bytes]]
    configs: dict[str, str] = field(default_factory=dict)


class _Model:
    """Random requests with a model of what must survive. One request at most is in doubt after a cut."""

    def __init__(self, broker: SimulatedBroker, rng: random.Random) -> None:
        self.broker, self.rng = broker, rng
        self.topics: dict[str, _Topic] = {}
        self.in_doubt: tuple[str, str, Any] = ("nothing", "", None)
        self.numbers = iter(range(10**9))

    def run(self) -> None:
        """Send requests until the power is cut."""
        for _ in range(1000):
            self.step()

    def step(self) -> None:
        action = self.rng.choice([self.create, self.produce, self.produce, self.produce, self.delete, self.alter, self.grow])
        action()

    def create(self) -> None:
        name = f"t{self.rng.randrange(4)}"
        if name in self.topics:
            return
        self.in_doubt = ("create", name, None)
        result = self.broker.create(name, self.rng.randint(1, 3))
        assert result.error_code == 0
        self.topics[name] = _Topic(result.topic_id, [[] for _ in range(result.num_partitions)])

    def produce(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(sorted(self.topics))
        values = [b"%d" % next(self.numbers) for _ in self.topics[name].values]
        self.in_doubt = ("produce", name, values)
        for answer, value in zip(self.broker.produce(name, *map(batch, values)), values, strict=True):
            kept = self.topics[name].values[answer.index]
            assert (answer.error_code, answer.base_offset) == (0, len(kept))
            kept.append(value)

    def delete(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(sorted(self.topics))
        self.in_doubt = ("delete", name, None)
        self.broker.call(messages.DeleteTopicsRequest(topic_names=[name]), 5)
        del self.topics[name]

    def alter(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(sorted(self.topics))
        value = str(self.rng.randint(10**9, 10**10))
        self.in_doubt = ("alter", name, value)
        request = messages.IncrementalAlterConfigsRequest
        change = request.AlterableConfig(name="retention.ms", config_operation=0, value=value)
        resource = request.AlterConfigsResource(resource_type=2, resource_name=name, configs=[change])
        assert self.broker.call(request(resources=[resource]), 1).responses[0].error_code == 0
        self.topics[name].configs["retention.ms"] = value

    def grow(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(sorted(self.topics))
        count = len(self.topics[name].values) + 1
        self.in_doubt = ("grow", name, None)
        request = messages.CreatePartitionsRequest
        asked = request.CreatePartitionsTopic(name=name, count=count, assignments=None)
        assert self.broker.call(request(topics=[asked]), 3).results[0].error_code == 0
        self.topics[name].values.append([])

    def check(self) -> None:
        """Compare the restarted broker with the model; take over what the request in doubt left."""
        action, doubtful, detail = self.in_doubt
        found = self.broker.core.cluster.topics
        for name in {*found, *self.topics}:
            if name == doubtful and action in ("create", "delete"):
                self._adopt(name)
                continue
            assert found[name].topic_id == self.topics[name].topic_id
            if not (name == doubtful and action == "alter" and found[name].configs == {"retention.ms": detail}):
                assert found[name].configs == self.topics[name].configs
            self.topics[name].configs = dict(found[name].configs)
            is_growing = name == doubtful and action == "grow"
            assert 0 <= found[name].partition_count - len(self.topics[name].values) <= is_growing
            self.topics[name].values += [[] for _ in range(found[name].partition_count - len(self.topics[name].values))]
            for index, kept in enumerate(self.topics[name].values):
                values = self.broker.values(name, index)
                assert values[: len(kept)] == kept, "what was acknowledged is there, in its place"
                extra = values[len(kept) :]
                assert not extra or (action == "produce" and name == doubtful and extra == [detail[index]])
                kept += extra
        on_disk = {topic for topic, _ in self.broker.core.data_dir.partitions()}
        assert on_disk == set(found), "no directory is left of a topic that is gone"

    def _adopt(self, name: str) -> None:
        topic = self.broker.core.cluster.topics.get(name)
        if topic is None:
            self.topics.pop(name, None)
            return
        if name in self.topics:
            assert topic.topic_id == self.topics[name].topic_id
        values = [self.broker.values(name, index) for index in range(topic.partition_count)]
        self.topics[name] = _Topic(topic.topic_id, values, dict(topic.configs))  # type: ignore[arg-type]


def run_with_power_cuts(broker: SimulatedBroker, seed: int) -> None:
    rng = random.Random(seed)
    model = _Model(broker, rng)
    for _ in range(4):
        broker.disk.cut_at_step = broker.disk.steps + rng.randrange(1, 150)
        model.in_doubt = ("nothing", "", None)
        with pytest.raises(PowerCut):
            model.run()
        broker.power_cut(rng)
        model.check()
    broker.close()


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_write_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    run_with_power_cuts(SimulatedBroker(tmp_path), seed)


def test_a_deletion_that_a_power_cut_interrupts_is_all_or_nothing(tmp_path: Path) -> None:
    outcomes = set()
    for step in range(1, 200):
        path = tmp_path / str(step)
        path.mkdir()
        broker = SimulatedBroker(path)
        broker.create("t", 2)
        broker.create("kept")
        for name in ("t", "kept"):
            assert [answer.error_code for answer in broker.produce(name, batch(b"v"))] == [0]
        broker.disk.cut_at_step = broker.disk.steps + step
        try:
            broker.call(messages.DeleteTopicsRequest(topic_names=["t"]), 5)
        except PowerCut:
            broker.power_cut(random.Random(step))
        is_there = "t" in broker.core.cluster.topics
        outcomes.add(is_there)
        assert sorted(broker.core.data_dir.partitions()) == [("kept", 0), *([("t", 0), ("t", 1)] if is_there else [])]
        assert broker.values("kept", 0) == [b"v"]
        assert not is_there or (broker.values("t", 0), broker.values("t", 1)) == ([b"v"], [])
        is_over = broker.disk.steps < broker.disk.cut_at_step
        broker.disk.cut_at_step = -1
        broker.close()
        if is_over:
            break
    assert outcomes == {True, False}
    assert is_over, "every step of the deletion was cut at"


def test_a_broker_that_does_not_flush_is_caught(tmp_path: Path) -> None:
    caught = 0
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        try:
            run_with_power_cuts(SimulatedBroker(tmp_path / str(seed), flusher=LyingFlusher()), seed)
        except AssertionError:
            caught += 1
    assert caught >= 5, "by chance a cut may leave everything, but not most times"


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("kept")
    assert broker.produce("kept", batch(b"before"))[0].error_code == 0
    broker.disk.capacity_bytes = broker.disk.used_bytes() + 100
    (refused,) = broker.produce("kept", batch(bytes(5000)))
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "no space left" in refused.error_message
    assert broker.create("refused", 3).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "refused" not in broker.core.cluster.topics
    assert broker.values("kept", 0) == [b"before"]
    broker.disk.capacity_bytes = 1 << 40
    assert broker.produce("kept", batch(b"after"))[0].base_offset == 1
    assert broker.create("refused", 3).error_code == 0
    assert broker.values("kept", 0) == [b"before", b"after"]
    broker.close()


def test_an_fsync_that_fails_is_never_acknowledged(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t")
    broker.produce("t", batch(b"good"))
    broker.disk.fail("sync")
    (answer,) = broker.produce("t", batch(b"bad"))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    (later,) = broker.produce("t", batch(b"later"))
    assert later.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "what is on disk is unknown until the log is opened again"
    broker.power_cut(random.Random(1))
    assert broker.values("t", 0)[:1] == [b"good"]
    assert broker.produce("t", batch(b"again"))[0].error_code == 0
    broker.close()
