"""Writes each record to the topic that an expression gives for it.

A topic is checked before anything is encoded: a name that no topic may have, one outside the list of the node, one that the
application reads itself. Such a record is refused, and so is, where it is written, one whose topic does not exist.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from logflume.log import InvalidInput, check_own_topic

from .. import graph as g
from ..columns import Batch
from ..columns.batch import ColumnId
from ..columns.encode import RowEncoder
from ..columns.evaluate import Evaluation
from ..columns.header_ids import OutputHeaders
from ..expr import columns_used
from .operator import Bind, Errors, Task, Wiring
from .outputs import OutputOperator, OutputWork

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_KNOWN_MAX = 10_000


class RouteOperator(OutputOperator):
    """A Route."""

    node_class = g.Route

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        assert isinstance(self.node, g.Route)
        return super().reads(source, below, wiring) | columns_used(self.node.topic_of)

    def plan(self, wiring: Wiring) -> Bind:
        node = self.node
        assert isinstance(node, g.Route)
        encoder, headers, topics = self.encoder(wiring), self.headers(wiring), Evaluation(node.topic_of)
        return lambda task: RouteWork(node, encoder, headers, topics, task)


class RouteWork(OutputWork):
    """See `RouteOperator`."""

    def __init__(self, node: g.Route, encoder: RowEncoder, headers: OutputHeaders, topics: Evaluation, task: Task) -> None:
        super().__init__(node, encoder, headers, None, task)
        self._route, self._topics = node, topics
        self._known: dict[str, str | None] = {}
        """What is wrong with a topic, None for nothing; at most _KNOWN_MAX of them."""

    def process(self, batch: Batch, source: str) -> None:
        errors = Errors(self._task, self._route, batch)
        topics = self._topics.column(batch, errors.of(self._topics)).objects()
        rows: dict[str, list[int]] = {}
        for row, topic in enumerate(topics):
            if row in errors.failed:
                continue
            trouble = self._trouble(topic)
            if trouble is None:
                rows.setdefault(topic, []).append(row)
            else:
                self._task.report("refused", self._route.name, batch, row, trouble)
        for topic, found in rows.items():
            self.put(batch if len(found) == len(batch) else batch.take(np.array(found, np.int64)), topic)

    def _trouble(self, topic: Any) -> str | None:
        if not isinstance(topic, str):
            return f"expected the name of a topic, found {topic!r:.100}"
        if topic not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[topic] = self._check(topic)
        return self._known[topic]

    def _check(self, topic: str) -> str | None:
        node = self._route
        if node.topics and topic not in node.topics:
            return f"topic {topic!r:.100} is not among topics={list(node.topics)!r:.200}"
        if topic in node.barred:
            return f"topic {topic!r} is read by the application itself, or its own"
        if not _TOPIC.match(topic) or topic in (".", ".."):
            return f"topics have up to 249 letters, digits, '.', '_' and '-', found {topic!r:.100}"
        try:
            check_own_topic(topic)
        except InvalidInput as error:
            return str(error)
        return None
