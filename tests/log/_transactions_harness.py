"""A transaction coordinator in simulated surroundings, spoken to in messages of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from logflume.log.broker import transactions
from logflume.log.broker.access import UNRESTRICTED
from logflume.log.broker.ports import OpenInPartition
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.testing.simulated import SimulatedJournal, SimulatedTime
from logflume.log.broker.transactions import TransactionConfig, TransactionCoordinator
from logflume.log.broker.turns.slices import Slices
from logflume.log.protocol import codec, messages, tables
from logflume.log.protocol.errors import ErrorCode

OFFSETS_PARTITIONS = 50


@dataclass(frozen=True)
class Marker:
    where: tuple[str, int]
    producer_id: int
    epoch: int
    is_commit: bool


@dataclass(frozen=True)
class Data:
    """A record of a transaction, which has a number where a test wants to know it by that."""

    producer_id: int
    epoch: int
    transaction: int = 0


@dataclass(eq=False)
class Partitions:
    """Data partitions that note their markers, and their logs. With `is_manual` a marker is on disk when `flush` says so."""

    counts: dict[str, int] = field(default_factory=lambda: {"t": 4, "u": 2, "__consumer_offsets": OFFSETS_PARTITIONS})
    markers: list[Marker] = field(default_factory=list)
    errors: dict[tuple[str, int], int] = field(default_factory=dict)
    is_manual: bool = False
    in_flight: list[tuple[Marker, Reply]] = field(default_factory=list)
    logs: dict[tuple[str, int], list[Data | Marker]] = field(default_factory=dict)
    announced: list[tuple[str, int]] = field(default_factory=list)

    def exists(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self.counts.get(topic, 0)

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        is_bumped: bool = False,
    ) -> Reply:
        reply = Reply()
        where = (topic, partition)
        if is_bumped and any(each.producer_id == producer_id and each.producer_epoch >= epoch for each in self.opened(where)):
            return Reply.of(ErrorCode.NONE)
        if where in self.errors or not self.exists(*where):
            reply.set(self.errors.get(where, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return reply
        self.in_flight.append((Marker(where, producer_id, epoch, is_commit), reply))
        if not self.is_manual:
            self.flush()
        return reply

    def announce(self, ended: Sequence[tuple[str, int]], producer_id: int, *, is_commit: bool) -> None:
        self.announced += ended

    def producer_epoch(self, topic: str, partition: int, producer_id: int) -> int | None:
        where = (topic, partition)
        if where in self.errors:
            return None
        return max((entry.epoch for entry in self.logs.get(where, ()) if entry.producer_id == producer_id), default=-1)

    def opened(self, where: tuple[str, int]) -> list[OpenInPartition]:
        """Return the producers whose last entry in a partition is data."""
        last = {entry.producer_id: entry for entry in self.logs.get(where, ())}
        return [OpenInPartition(*where, each.producer_id, each.epoch) for each in last.values() if isinstance(each, Data)]

    def open_transactions(self) -> list[OpenInPartition]:
        return [found for where in self.logs if where not in self.errors for found in self.opened(where)]

    def append(self, where: tuple[str, int], data: Data) -> bool:
        """Bring a record to disk; False if it is of an older epoch, which is refused as the storage does."""
        if data.epoch < (self.producer_epoch(*where, data.producer_id) or 0):
            return False
        self.logs.setdefault(where, []).append(data)
        return True

    def flush(self, *, count: int | None = None) -> None:
        while self.in_flight and (count is None or count > 0):
            marker, reply = self.in_flight.pop(0)
            self.markers.append(marker)
            self.logs.setdefault(marker.where, []).append(marker)
            reply.set(ErrorCode.NONE)
            count = None if count is None else count - 1


class TxnBroker:
    """One broker's transactions. `crash` loses what is not on disk and starts anew from the journal."""

    def __init__(self, *, config: TransactionConfig | None = None, journal: SimulatedJournal | None = None) -> None:
        self.config = config or TransactionConfig()
        self.time = SimulatedTime()
        self.partitions = Partitions()
        self.journal = journal or SimulatedJournal()
        self.rights = UNRESTRICTED
        self._producer_ids = itertools.count(1000)
        self._start()

    def _start(self) -> None:
        self.txns = TransactionCoordinator(
            self.config,
            self.time,
            self.time,
            self.journal,
            self.partitions,
            new_producer_id=lambda: next(self._producer_ids),
        )
        self.txns.load()
        self.handlers = transactions.handlers(self.txns, self.partitions, self.time, offsets_partition_count=OFFSETS_PARTITIONS)

    def crash(self, *, kept: int = 0) -> None:
        self.txns.close()
        self.journal = self.journal.crashed(kept=kept)
        self.partitions.in_flight.clear()
        self._start()

    def send(self, api: str, *, version: int | None = None, **fields: Any) -> Any:
        """Send a request; return the response, or the Reply that it will come by."""
        table = tables.api_named(api)
        version = table.versions.last if version is None else version
        request = getattr(messages, f"{api}Request")(**fields)
        wire = b"".join(codec.encode(request, version, bytearray()))
        decoded = codec.decode_request(table.key, version, memoryview(wire))
        answer = self.handlers[api](RequestContext(table.key, version, 1, "c", "127.0.0.1", 1, rights=self.rights), decoded)
        if isinstance(answer, Generator):
            answer = Slices().run(answer)

        def through_wire(response: Any) -> Any:
            data = b"".join(codec.encode(response, version, bytearray()))
            return codec.decode_response(table.key, version, memoryview(data))

        if not isinstance(answer, Reply):
            return through_wire(answer)
        mapped = Reply()
        answer.then(lambda response: mapped.set(through_wire(response)))
        return mapped.value if mapped.is_done else mapped

    def init(
        self, name: str = "tx", *, producer: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000, version: int | None = None
    ) -> Any:
        """Return (error, producer id, epoch), or the Reply of the response."""
        answer = self.send(
            "InitProducerId",
            version=version,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        if isinstance(answer, Reply):
            return answer
        return ErrorCode(answer.error_code), answer.producer_id, answer.producer_epoch

    def started(self, name: str = "tx", **options: Any) -> tuple[int, int]:
        error, producer_id, epoch = self.init(name, **options)
        assert error == ErrorCode.NONE
        return producer_id, epoch

    def add(self, producer: tuple[int, int], *partitions: tuple[str, int], name: str = "tx", version: int = 3) -> Any:
        """Add partitions as older clients do; return an error per partition."""
        request = messages.AddPartitionsToTxnRequest
        answer = self.send(
            "AddPartitionsToTxn",
            version=version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(name=t, partitions=[p]) for t, p in partitions],
        )
        if isinstance(answer, Reply):
            return answer
        return [
            ErrorCode(p.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for p in topic.results_by_partition
        ]

    def produce(self, producer: tuple[int, int], where: tuple[str, int], *, name: str = "tx", can_add: bool = True) -> Any:
        """Ask as Produce does, and append: 12 and newer may add the partition. Return an error, or the Reply of one."""
        admission = self.txns.admit(name, *producer, *where, can_add=can_add)
        if admission.is_first_added:
            assert admission.added is not None
            reply = Reply()

            def append(error: ErrorCode) -> None:
                if not error:
                    self.partitions.append(where, Data(*producer))
                reply.set(error)

            admission.added.then(append)
            return reply.value if reply.is_done else reply
        if not admission.error:
            self.partitions.append(where, Data(*producer))
        if admission.added is None:
            return admission.error
        return admission.added.value if admission.added.is_done else admission.added

    def end(self, producer: tuple[int, int], *, is_commit: bool = True, name: str = "tx", version: int = 5) -> Any:
        """Return (error, producer id, epoch), or the Reply of the response."""
        answer = self.send(
            "EndTxn",
            version=version,
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=is_commit,
        )
        return answer if isinstance(answer, Reply) else ended(answer)

    def state(self, name: str = "tx") -> str:
        txn = self.txns.transaction(name)
        return txn.state.label if txn else "none"


def ended(response: Any) -> tuple[ErrorCode, int, int]:
    return ErrorCode(response.error_code), response.producer_id, response.producer_epoch
