"""Everything an engine writes to the log, as one transaction per task commit (or plainly, at least once).

A record that its topic does not take never holds up the others: it goes to the `Refused` of whoever sent it, and the rest of the
transaction is written without it, again if the broker was the first to say so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from logflume.log import LogflumeError, RecordsRefused, TransactionMustAbort, key_partitions
from logflume.log.interfaces import Admin, Consumer, OffsetAndMetadata, Producer
from logflume.log.records import Chunk, Record, TopicPartition
from logflume.streams.seams import OutputTopic
from logflume.streams.state import Dirty

from .computed_topics import ComputedTopics
from .handlers import StreamsError
from .options import EngineOptions, Guarantee
from .problems import DeadLetter, chunk_of_letters, log_lost_letter
from .rules import TopicRules, rules_of

Refused = Callable[[Record, object], None]
"""Told of a record that its topic does not take, and why. May raise: the application then stops."""

_RETRIES_MAX = 50
_RULES_FRESH_S = 1.0


@dataclass(slots=True)
class _Sent:
    """A chunk in the open transaction. `partition` None: by key."""

    topic: str
    partition: int | None
    chunk: Chunk
    refused: Refused
    future: Future[int]

    def drop(self, rows: Mapping[int, object]) -> None:
        """Leave rows out, and tell of them."""
        told = sorted(rows)
        for row, record in zip(told, self.chunk.take(np.array(told)).records(), strict=True):
            self.refused(record, rows[row])
        self.chunk = take(self.chunk, np.delete(np.arange(len(self.chunk)), told))


class LogWriter:
    """Collects sends into the open transaction; `commit` ends it. One thread. `partitions`: topic -> number."""

    def __init__(
        self,
        producer: Producer,
        consumer: Consumer,
        admin: Admin,
        options: EngineOptions,
        partitions: Mapping[str, int],
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._admin = admin
        self._options = options
        self._partitions = partitions
        self._computed = ComputedTopics(admin, monotonic_s=time.monotonic)
        self._wall_s = wall_s
        self._is_transactional = options.guarantee is Guarantee.EXACTLY_ONCE
        self._is_open = False
        self._sent: list[_Sent] = []
        self._rules: dict[str, tuple[TopicRules, float]] = {}

    def send(self, output: OutputTopic, topic: str, chunk: Chunk, refused: Refused) -> None:
        """Write an output's records to its topic, each to the partition of its key (of the inner key for windows)."""
        found = self._computed.find(topic) if topic not in self._partitions else self._partitions[topic]
        if isinstance(found, str):
            for record in chunk.records():
                refused(record, found)
            return
        if not output.key_suffix_bytes:
            self._send(topic, None, chunk, refused)
            return
        for partition, part in by_inner_key(chunk, found, output.key_suffix_bytes):
            self._send(topic, partition, part, refused)

    def send_changelog(self, topic: str, partition: int, entries: Dirty) -> None:
        """Write changed entries of a store to the partition of its task."""
        self._send(topic, partition, entries.chunk(topic), _refused_entry(topic, partition))

    def send_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Write records that could not be processed to the dead letter topic; what even that refuses is logged."""
        topic = self._options.dead_letter_topic
        assert topic is not None
        self._send(topic, None, chunk_of_letters(topic, letters), log_lost_letter)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], take_letters: Callable[[], Sequence[DeadLetter]]
    ) -> None:
        """Make all that was sent, and the offsets, durable and visible: together, or (at least once) in this order.

        `take_letters` gives what was refused while this was done.

        Raises:
            PoisonRecord: a record was refused and the setting is to stop. StreamsError: an entry of a changelog was refused.
        """
        for _ in range(_RETRIES_MAX):
            letters = take_letters()
            if letters:
                self.send_letters(letters)
            if self._commit_once(offsets):
                self._sent.clear()
                return
        raise _too_often()

    def _commit_once(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return whether it is done; False when records were refused, of which all have been told and the rest sent again."""
        failpoint = self._options.failpoint
        if not self._is_transactional:
            try:
                self._producer.flush()
            except RecordsRefused:
                self._drop_refused()
                return False
            failpoint("after-log-flush")
            self._consumer.commit(offsets)
            return True
        self._begin()
        try:
            self._producer.send_offsets(offsets, self._consumer.group_metadata(), renewed=self._consumer.renewed_metadata)
            failpoint("after-send-offsets")
            self._producer.commit_transaction()
        except TransactionMustAbort as error:
            self._send_again(error)
            return False
        self._is_open = False
        return True

    def abort(self) -> None:
        """Drop the open transaction, as far as the broker can still be told."""
        self._sent.clear()
        if self._is_open:
            self._is_open = False
            try:
                self._producer.abort_transaction()
            except LogflumeError:
                return  # fenced or unreachable: the broker aborts it itself

    def _send(self, topic: str, partition: int | None, chunk: Chunk, refused: Refused) -> None:
        """Add a chunk to the transaction, but for the records that its topic will not take."""
        self._begin()
        sent = _Sent(topic, partition, chunk, refused, Future())
        self._check(sent)
        self._sent.append(sent)
        try:
            sent.future = self._producer.send_chunk(topic, sent.chunk, partition=partition)
        except TransactionMustAbort as error:
            self._send_again(error)

    def _check(self, sent: _Sent) -> None:
        """Leave out what the topic's rules refuse; rules that refuse something are asked for anew, in case they were changed."""
        rules, asked_s = self._rules.get(sent.topic) or self._ask_rules(sent.topic)
        refused = rules.refused(sent.chunk, int(self._wall_s() * 1000))
        if refused and self._wall_s() - asked_s > _RULES_FRESH_S:
            rules, _ = self._ask_rules(sent.topic)
            refused = rules.refused(sent.chunk, int(self._wall_s() * 1000))
        if refused:
            sent.drop(dict(refused))

    def _ask_rules(self, topic: str) -> tuple[TopicRules, float]:
        self._rules[topic] = ask_rules(self._admin, topic), self._wall_s()
        return self._rules[topic]

    def _send_again(self, error: TransactionMustAbort) -> None:
        """Abort, and send all but what was refused in a new transaction.

        Raises the error when nothing was refused, StreamsError after too many attempts.
        """
        for _ in range(_RETRIES_MAX):
            with contextlib.suppress(LogflumeError):  # the cause is in the futures
                self._producer.flush()
            if not any(isinstance(_outcome(sent), RecordsRefused) for sent in self._sent):
                raise error
            self._producer.abort_transaction()
            self._is_open = False
            self._drop_refused()
            self._begin()
            try:
                for sent in self._sent:
                    sent.future = self._producer.send_chunk(sent.topic, sent.chunk, partition=sent.partition)
            except TransactionMustAbort as again:
                error = again
            else:
                return
        raise _too_often()

    def _drop_refused(self) -> None:
        """Leave out what the broker has refused; of a transaction also what its topics' rules, asked anew, say of the rest."""
        for sent in self._sent:
            outcome, sent.future = _outcome(sent), Future()
            others = outcome.others if isinstance(outcome, RecordsRefused) else outcome
            if others is not None and not self._is_transactional:
                raise others
            if isinstance(outcome, RecordsRefused):
                rules, _ = self._ask_rules(sent.topic)
                for row, cause in outcome.causes.items():
                    rules = rules.learned(cause.code, sent.chunk, row, int(self._wall_s() * 1000))
                self._rules[sent.topic] = rules, self._wall_s()
                sent.drop(outcome.causes)
        for sent in self._sent if self._is_transactional else ():
            self._check(sent)

    def _begin(self) -> None:
        if self._is_transactional and not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True


def ask_rules(admin: Admin, topic: str) -> TopicRules:
    """Return what a topic takes, as far as it may be asked."""
    try:
        return rules_of(admin.topic_configs(topic))
    except LogflumeError:
        return TopicRules()  # not allowed to ask: the broker says what it refuses


def _too_often() -> StreamsError:
    return StreamsError(
        f"the log refused records of one task commit {_RETRIES_MAX} times in a row; the warnings before say which"
    )


def _outcome(sent: _Sent) -> BaseException | None:
    return sent.future.exception() if sent.future.done() else None


def _refused_entry(topic: str, partition: int) -> Refused:
    """Return what stops the application: without the entry, a restored store would be wrong."""

    def refused(record: Record, cause: object) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        raise StreamsError(
            f"changelog {topic}-{partition} does not take an entry of {size} bytes (key {record.key!r:.100}): {cause}; raise "
            "the topic's limit, or keep less per key"
        )

    return refused


def by_inner_key(chunk: Chunk, partitions: int, suffix_bytes: int) -> list[tuple[int, Chunk]]:
    """Split a chunk with windowed keys by the partition of the key without its window, keeping the order."""
    if partitions == 1:
        return [(0, chunk)]
    inner = chunk.slice(0, len(chunk))
    inner.key_sizes = np.where(chunk.key_sizes >= 0, chunk.key_sizes - suffix_bytes, -1).astype(np.int32)
    targets = key_partitions(inner, partitions)
    return [(target, take(chunk, np.flatnonzero(targets == target))) for target in sorted(set(targets.tolist()))]


def take(chunk: Chunk, rows: np.typing.NDArray[np.intp]) -> Chunk:
    """Return some records of a chunk, over the same buffer."""
    return Chunk(
        chunk.topic,
        chunk.partition,
        chunk.buffer,
        chunk.offsets[rows],
        chunk.timestamps_ms[rows],
        chunk.key_starts[rows],
        chunk.key_sizes[rows],
        chunk.value_starts[rows],
        chunk.value_sizes[rows],
        chunk.header_starts[rows],
        chunk.header_counts[rows],
        chunk.next_offset,
    )
