"""`cluster.json` is written off the broker's thread: nothing is there before it is on disk, nothing is lost between writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import StorageError
from logflume.log.broker.replies import Reply
from logflume.log.broker.state.cluster import PRODUCER_ID_BLOCK, ClusterState
from logflume.log.broker.state.metadata import (
    BrokerConfigsSet,
    ClusterConfigsSet,
    DeletionBegun,
    DeletionFinished,
    DocumentSet,
    GroupConfigsSet,
    Metadata,
    PartitionsAdded,
    ProducerIdsReserved,
    Record,
    Topic,
    TopicConfigsSet,
    TopicsAdded,
    applied,
    from_json,
    to_json,
)
from logflume.log.broker.turns.slices import Slices, Steps
from logflume.log.storage import OsDisk
from logflume.log.storage.testing import SimulatedDisk


class OtherThread:
    """Does what was handed to it when told to, in a thread; its replies are set on the test's, as on the broker's."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Reply]] = []

    def __call__(self, work: Callable[[], Any]) -> Reply:
        self.jobs.append((work, Reply()))
        return self.jobs[-1][1]

    def work(self) -> Callable[[], None]:
        """Do the first job; return what tells of it."""
        job, reply = self.jobs.pop(0)
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()
        return lambda: reply.set(None)


class Cluster:
    def __init__(self, path: Path) -> None:
        self.path, self.elsewhere = path, OtherThread()
        self.state = ClusterState(str(path), OsDisk(), offload=self.elsewhere)
        self._turns: list[Callable[[], None]] = []
        self._slices = Slices(self._turns.append)

    def begin(self, steps: Steps) -> Reply:
        """Run steps as far as they come; the reply says when they are over."""
        reply = self._slices.run(steps)
        return reply if isinstance(reply, Reply) else Reply()

    def turn(self) -> None:
        while self._turns:
            self._turns.pop(0)()

    def on_disk(self) -> set[str]:
        return set(ClusterState(str(self.path), OsDisk()).topics)


def topic(name: str) -> Topic:
    return Topic(name, name.encode().ljust(16), 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "cluster.json")


def test_a_change_is_there_once_it_is_on_disk(cluster: Cluster) -> None:
    state = cluster.state
    done = cluster.begin(state.later(TopicsAdded((topic("a"),))))
    cluster.turn()
    assert not state.topics
    assert not done.is_done
    tell = cluster.elsewhere.work()
    assert cluster.on_disk() == {"a"}
    tell()
    cluster.turn()
    assert set(state.topics) == {"a"}
    assert done.is_done


def test_changes_wait_for_one_another_and_none_is_lost(cluster: Cluster) -> None:
    state = cluster.state
    replies = [cluster.begin(state.later(TopicsAdded((topic(name),)))) for name in ("a", "b", "c")]
    for there in ({"a"}, {"a", "b"}, {"a", "b", "c"}):
        assert len(cluster.elsewhere.jobs) == 1
        cluster.elsewhere.work()()
        cluster.turn()
        assert set(state.topics) == cluster.on_disk() == there
    assert all(reply.is_done for reply in replies)


def test_a_change_that_cannot_wait_keeps_the_one_that_is_under_way(cluster: Cluster) -> None:
    state = cluster.state
    state.now(TopicsAdded((topic("old"),)))
    done = cluster.begin(state.later(TopicsAdded((topic("a"),))))
    tell = cluster.elsewhere.work()
    state.now(TopicConfigsSet(state.topics["old"].topic_id, {"retention.ms": "1"}))
    assert set(state.topics) == cluster.on_disk() == {"old", "a"}
    state.now(DocumentSet("d", 1))
    tell()
    cluster.turn()
    assert done.is_done
    again = ClusterState(str(cluster.path), OsDisk())
    assert set(again.topics) == {"old", "a"}
    assert again.topics["old"].configs == {"retention.ms": "1"}
    assert again.document("d") == 1


def test_a_write_that_fails_changes_nothing_and_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    state, told = cluster.state, []

    def steps() -> Steps:
        try:
            yield from state.later(TopicsAdded((topic("a"),)))
        except StorageError as error:
            told.append(error)

    cluster.begin(steps())

    def full(*_: object) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("logflume.log.broker.state.cluster.write_atomically", full)
        tell = cluster.elsewhere.work()
    tell()
    cluster.turn()
    assert told
    assert not state.topics
    state.now(TopicsAdded((topic("a"),)))
    assert cluster.on_disk() == {"a"}


def test_producer_ids_are_had_without_waiting_and_never_twice(cluster: Cluster) -> None:
    state = cluster.state
    ids = [state.new_producer_id()]
    for _ in range(3 * PRODUCER_ID_BLOCK):
        if cluster.elsewhere.jobs:
            cluster.elsewhere.work()()
        ids.append(state.new_producer_id())
    assert len(set(ids)) == len(ids)
    again = ClusterState(str(cluster.path), OsDisk())
    assert again.new_producer_id() not in ids


NAMES = ("a", "b", "c")
configs = st.dictionaries(st.sampled_from(["retention.ms", "segment.bytes"]), st.sampled_from(["1", "2"]))


@st.composite
def changes(draw: st.DrawFn) -> list[Record]:
    """A history that may be: what is added is new, what grows is there."""
    there: dict[str, int] = {}
    ids: dict[str, bytes] = {}
    history: list[Record] = []
    for number in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(NAMES))
        others = [
            BrokerConfigsSet(draw(configs)),
            ClusterConfigsSet(draw(configs)),
            GroupConfigsSet(name, draw(configs)),
            DocumentSet(name, draw(st.none() | st.lists(st.integers(0, 9), max_size=3))),
            ProducerIdsReserved(number * 1000),
            DeletionFinished(frozenset(ids.values())),
        ]
        if name not in there:
            ids[name], there[name] = bytes([number]) * 16, draw(st.integers(1, 3))
            of_topic: list[Record] = [TopicsAdded((Topic(name, ids[name], there[name], draw(configs)),))]
        else:
            of_topic = [PartitionsAdded({name: there[name] + 1}), DeletionBegun(frozenset({ids[name]}))]
        of_topic.append(TopicConfigsSet(ids[name], draw(configs)))
        record = of_topic[0] if isinstance(of_topic[0], TopicsAdded) else draw(st.sampled_from([*of_topic, *others]))
        if isinstance(record, PartitionsAdded):
            there[name] += 1
        elif isinstance(record, DeletionBegun):
            del there[name]
        history.append(record)
    return history


@settings(max_examples=30, deadline=None)
@given(changes())
def test_whatever_is_recorded_is_in_memory_and_after_a_restart(history: list[Record]) -> None:
    disk = SimulatedDisk()
    state, model = ClusterState("/cluster.json", disk), Metadata()
    for record in history:
        before, model = model, applied(model, record)
        state.now(record)
        again = ClusterState("/cluster.json", disk)
        for found in (state, again):
            assert {name: to_json(Metadata(topics={name: topic})) for name, topic in found.topics.items()} == {
                name: to_json(Metadata(topics={name: topic})) for name, topic in model.topics.items()
            }
            assert {topic.topic_id for topic in found.deleting} == {topic.topic_id for topic in model.deleting}
            assert set(found.by_id) == {topic.topic_id for topic in model.topics.values()}
            assert (found.broker_configs, found.cluster_configs) == (model.broker_configs, model.cluster_configs)
            assert found.group_configs == model.group_configs
            assert [found.document(name) for name in NAMES] == [model.documents.get(name) for name in NAMES]
        assert to_json(from_json(to_json(model))) == to_json(model)
        assert before is not model


def test_configs_of_a_topic_that_was_deleted_meanwhile_are_nobodys(cluster: Cluster) -> None:
    old, new = topic("a"), Topic("a", b"n" * 16, 1)
    cluster.state.now(TopicsAdded((old,)))
    cluster.state.now(DeletionBegun(frozenset({old.topic_id})))
    cluster.state.now(TopicsAdded((new,)))
    cluster.state.now(TopicConfigsSet(old.topic_id, {"retention.ms": "1"}))
    assert cluster.state.topics["a"].configs == {}
    assert [each.configs for each in cluster.state.deleting] == [{}]
