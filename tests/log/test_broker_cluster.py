"""`cluster.json` is written off the broker's thread: nothing is there before it is on disk, nothing is lost between writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logflume.log import StorageError
from logflume.log.broker.replies import Reply
from logflume.log.broker.state.cluster import PRODUCER_ID_BLOCK, ClusterState, Topic
from logflume.log.broker.turns.slices import Slices, Steps
from logflume.log.storage import OsDisk


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
    done = cluster.begin(state.later(state.add_topics([topic("a")])))
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
    replies = [cluster.begin(state.later(state.add_topics([topic(name)]))) for name in ("a", "b", "c")]
    for there in ({"a"}, {"a", "b"}, {"a", "b", "c"}):
        assert len(cluster.elsewhere.jobs) == 1
        cluster.elsewhere.work()()
        cluster.turn()
        assert set(state.topics) == cluster.on_disk() == there
    assert all(reply.is_done for reply in replies)


def test_a_change_that_cannot_wait_keeps_the_one_that_is_under_way(cluster: Cluster) -> None:
    state = cluster.state
    state.now(state.add_topics([topic("old")]))
    done = cluster.begin(state.later(state.add_topics([topic("a")])))
    tell = cluster.elsewhere.work()
    state.now(state.set_topic_configs(state.topics["old"], {"retention.ms": "1"}))
    assert set(state.topics) == cluster.on_disk() == {"old", "a"}
    state.now(state.set_document("d", 1))
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
            yield from state.later(state.add_topics([topic("a")]))
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
    state.now(state.add_topics([topic("a")]))
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
