"""The metadata cache while several threads of an application use one client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from logflume.log.client.cluster import Cluster


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
