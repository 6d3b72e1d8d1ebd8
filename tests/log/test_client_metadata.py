"""The metadata cache while several threads of an application use one client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logflume.log import TransportError, UnknownName, connect
from logflume.log.client.cluster import Cluster, PartitionInfo, TopicInfo


class _Answers:
    """A broker's answer with two topics; as it is taken in, what another thread would see is noted down."""

    def __init__(self) -> None:
        self.cluster: Any = None
        self.seen: list[set[str]] = []

    def channel(self, client_id: str) -> Any:
        return self

    def learn_nodes(self, nodes: Any) -> None: ...

    async def request(self, request: Any) -> Any:
        brokers = [SimpleNamespace(node_id=0, host="h", port=1)]
        return SimpleNamespace(brokers=brokers, controller_id=0, cluster_id="c", topics=self._topics())

    def _topics(self) -> Iterator[Any]:
        for name in ("a", "b"):
            self.seen.append(set(self.cluster.topics))
            yield SimpleNamespace(name=name, error_code=0, partitions=[], topic_id=SimpleNamespace(hex=str), is_internal=False)


def test_topics_that_are_known_stay_known_while_they_are_looked_up_again() -> None:
    answers = _Answers()
    cluster = answers.cluster = Cluster(answers, "test")  # type: ignore[arg-type]

    async def look_twice() -> None:
        await cluster.refresh(None)
        answers.seen.clear()
        await cluster.refresh(None)

    asyncio.run(look_twice())
    assert answers.seen == [{"a", "b"}] * 2


def test_topics_are_listed_as_they_were_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of a log's connection forget a topic after an error, also between the answer and the list."""
    with connect(tmp_path) as log:
        admin = log.admin()
        admin.create_topic("s", partitions=1)
        cluster = admin._cluster  # type: ignore[attr-defined]
        run = admin._run  # type: ignore[attr-defined]

        def doubting(work: Any) -> Any:
            found = run(work)
            cluster.forget_topic("s")
            return found

        monkeypatch.setattr(admin, "_run", doubting)
        assert admin.list_topics() == ["s"]


def test_a_topic_made_while_it_is_looked_for_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first question may take longer than a client waits for a topic that is being made."""
    topic = TopicInfo("late", "", (PartitionInfo(0, 0),), False)
    cluster = Cluster(_Answers(), "c")  # type: ignore[arg-type]

    async def refresh(names: Any) -> dict[str, TopicInfo]:
        return {} if names is not None else {"late": topic}

    monkeypatch.setattr(cluster, "refresh", refresh)
    monkeypatch.setattr("logflume.log.client.cluster.UNKNOWN_TOPIC_GRACE_S", 0.0)
    assert asyncio.run(cluster.topic("late")) is topic
    with pytest.raises(UnknownName, match="unknown topic 'lat'; did you mean 'late'"):
        asyncio.run(cluster.topic("lat"))


class _Gone:
    """A broker that ends while it is asked; the question is noted first."""

    def __init__(self) -> None:
        self.asked, self.is_gone = asyncio.Event(), asyncio.Event()

    def channel(self, client_id: str) -> Any:
        return self

    async def request(self, request: Any) -> Any:
        self.asked.set()
        await self.is_gone.wait()
        raise TransportError("connection refused")


def test_nothing_is_said_of_what_nobody_waits_for_any_more() -> None:
    """Who asked had left when the broker was gone: the failure is nobody's, and no traceback tells it to the user."""
    told: list[Any] = []

    async def ask_and_leave() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        broker = _Gone()
        cluster = Cluster(broker, "test")  # type: ignore[arg-type]
        asking = loop.create_task(cluster.refresh(["a"]))
        await broker.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        broker.is_gone.set()
        while cluster._refreshing:
            await asyncio.sleep(0)
        del asking
        gc.collect()
        with pytest.raises(TransportError):  # who does wait is told
            await cluster.refresh(["a"])

    asyncio.run(ask_and_leave())
    assert told == []
