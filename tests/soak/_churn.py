"""Work beside the records of a soak that moves files about: compaction, retention, DeleteRecords, topics and configs that change.

Each worker keeps a model of what must be, and looks itself for what is wrong with it at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar
from zlib import crc32

from logflume.log import Log, LogflumeError, TopicPartition

from ._checker import Anomaly
from ._clients import Broken
from ._history import OK, At, Records
from ._workers import MakeWriter, Worker

SMALL_SEGMENTS = {"segment.bytes": "20000", "index.interval.bytes": "1000"}
TABLE = {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
EXPIRING = {**SMALL_SEGMENTS, "retention.bytes": "60000"}
KEYS = 40


class Churn(Worker):
    """A worker with a judgement of its own.

    Attributes:
        topics: what it needs, with configs.
        partitions: what is to be read in the end.
    """

    topics: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    partitions: Sequence[At] = ()

    @abstractmethod
    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        """Compare the log, and what was read of `partitions`, with the model."""


class _Appender(Churn):
    """Appends records, and knows what was acknowledged at which offset and what was tried."""

    def __init__(self, name: str, topic: str, count: int, make: MakeWriter, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self.partitions = [At(topic, index) for index in range(count)]
        self._make = make
        self.tried: set[str] = set()
        self.acked: dict[tuple[At, int], str] = {}
        self._number = 0

    def session(self) -> None:
        writer = self._make(None)
        try:
            while self.pause():
                for _ in range(self.rng.randrange(5, 30)):
                    self._number += 1
                    value = self.value(self._number)
                    self.tried.add(value)
                    at = self.partitions[crc32(value.partition("|")[0].encode()) % len(self.partitions)]
                    writer.send(at, value, lambda outcome, offset, at=at, value=value: self._done(at, value, outcome, offset))  # type: ignore[misc]
                writer.flush()
                self.progress = self._number
                self.step()
        finally:
            writer.flush()
            writer.close()

    def _done(self, at: At, value: str, outcome: str, offset: int) -> None:
        if outcome == OK and offset >= 0:
            self.acked[at, offset] = value

    def value(self, number: int) -> str:
        return f"{self.name}:{self.sessions}:{number}:{'x' * 60}"

    def step(self) -> None:
        """Do something else between two rounds. Raises Broken."""

    def strangers(self, found: Records) -> Iterator[Anomaly]:
        """Yield records that nobody sent, and those at the offset of another one."""
        for at in self.partitions:
            for offset, value in found.get(at, []):
                if value not in self.tried:
                    yield Anomaly("unknown-value", f"nobody sent {value[:80]!r}, which is at {at}@{offset}")
                elif self.acked.get((at, offset), value) != value:
                    yield Anomaly("inconsistent-offsets", f"{at}@{offset} is {value}, acknowledged was {self.acked[at, offset]}")


class TableWriter(_Appender):
    """Writes a compacted topic: the last acknowledged value of each key stays, whoever is killed while it is compacted."""

    topics: ClassVar = {"table": TABLE}

    def value(self, number: int) -> str:
        return f"k{self.rng.randrange(KEYS)}|{super().value(number)}"

    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        yield from self.strangers(found)
        last = {(at, value.partition("|")[0]): offset for at in self.partitions for offset, value in found.get(at, [])}
        for (at, offset), value in self.acked.items():
            key = value.partition("|")[0]
            if last.get((at, key), -1) < offset:
                yield Anomaly("lost-write", f"{key} of {at} was acknowledged at {offset}; its last is at {last.get((at, key))}")


class Trimmer(_Appender):
    """Writes a topic whose begin is deleted by records and by size: what is left is all there from its begin on."""

    topics: ClassVar = {"trimmed": EXPIRING}

    def __init__(self, name: str, topic: str, count: int, make: MakeWriter, log: Log, *, pause_s: float) -> None:
        super().__init__(name, topic, count, make, pause_s=pause_s)
        self._log = log
        self._low: dict[At, int] = {}

    def step(self) -> None:
        at = self.rng.choice(list(self.partitions))
        ends = [offset for where, offset in self.acked if where == at]
        if not ends or self.rng.random() < 0.7:
            return
        before = self.rng.randint(max(ends) // 2, max(ends))
        try:
            self._log.admin().delete_records({TopicPartition(*at): before})
        except LogflumeError as error:
            raise Broken(str(error)) from error
        self._low[at] = max(before, self._low.get(at, 0))

    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        yield from self.strangers(found)
        begins = log.admin().start_offsets([TopicPartition(*at) for at in self.partitions])
        for at in self.partitions:
            begin, there = begins[TopicPartition(*at)], {offset for offset, _ in found.get(at, [])}
            if begin < self._low.get(at, 0):
                yield Anomaly("deleted-records-back", f"{at} begins at {begin}, deleted was everything before {self._low[at]}")
            for (where, offset), value in self.acked.items():
                if where == at and offset >= begin and offset not in there:
                    yield Anomaly("lost-write", f"{value} was acknowledged at {at}@{offset}, which begins at {begin}")


class TopicChurner(Churn):
    """Creates topics, changes a config of theirs, deletes them: what was answered is so."""

    def __init__(self, name: str, log: Log, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._log = log
        self._known: dict[str, str | None] = {}
        """Topic -> retention.ms as it was acknowledged; None: it was deleted. What is in doubt is not in it."""
        self._number = 0

    def session(self) -> None:
        admin = self._log.admin()
        while self.pause():
            there = [name for name, retention in self._known.items() if retention is not None]
            action = self.rng.choice(("create", "alter", "delete")) if len(there) > 3 else "create"
            self._number += 1
            name = f"{self.name}-{self._number}" if action == "create" else self.rng.choice(there)
            self._known.pop(name, None)
            retention = str(10**9 + self._number)
            try:
                if action == "create":
                    admin.create_topic(name, partitions=2, configs={"retention.ms": retention})
                elif action == "alter":
                    admin.alter_topic_configs(name, {"retention.ms": retention})
                else:
                    admin.delete_topic(name)
            except LogflumeError as error:
                raise Broken(str(error)) from error
            self._known[name] = None if action == "delete" else retention
            self.progress += 1

    def anomalies(self, log: Log, found: Records) -> Iterator[Anomaly]:
        admin = log.admin()
        there = set(admin.list_topics())
        for name, retention in self._known.items():
            if (name in there) != (retention is not None):
                yield Anomaly("topic", f"{name} is {'there' if name in there else 'not there'}; acknowledged was the opposite")
            elif retention is not None and admin.changed_topic_configs(name).get("retention.ms") != retention:
                yield Anomaly("config", f"retention.ms of {name} is not {retention}, which was acknowledged")
