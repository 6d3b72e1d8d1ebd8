"""Records that cannot be processed: counted by reason, logged (the first ones of each reason in full), kept, never silent."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from logflume.log import InvalidInput, LogflumeError
from logflume.log.records import Chunk, Headers, Record, TopicPartition

from .handlers import Handlers, OnProblem, Problem, StreamsError
from .status import LeftOut, added_up
from .watch import named, users_frame

_log = logging.getLogger("logflume.streams")
_LOGGED_IN_FULL = 10
_MESSAGE_MAX, _STACKTRACE_MAX, _SAMPLE_MAX = 1000, 4000, 300
HEADER_PREFIX = "__streams.errors."
"""Of the headers that say where a dead letter came from and why it was kept (KIP-1034)."""
BAD_RECORDS = frozenset({"decode", "expression", "callable", "encode", "refused"})
"""Reasons that mean something is wrong with a record; the others (late, null_key, ...) belong to an operator's meaning."""

_OF_NO_RECORD = "a result that no single record caused"
"""Of a commit or a schedule."""

HINTS = {
    "null_key": "what is computed by key needs one: group_by(...) or select_key(...) something that every record has",
    "late": "its windows are closed: give them a longer grace if such records shall count",
    "negative_time": "event times are milliseconds since 1970",
}
"""What the reasons that belong to an operator's meaning have to say."""


class Place(NamedTuple):
    """Where and why records are left out.

    `topic`: what was read, for `refused` what was written; empty: no record is, or each says its topic itself.
    """

    node: str
    topic: str
    reason: str


class PoisonRecord(StreamsError, InvalidInput):
    """A record could not be processed and the application's setting is to stop."""

    code = "POISON_RECORD"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be processed, as it is kept: its own key and value, with the cause in headers."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers

    def with_facts(self, facts: Mapping[str, object]) -> DeadLetter:
        """Return it with other facts in place of those of these names."""
        told = {f"{HEADER_PREFIX}{name}": str(value).encode() for name, value in facts.items()}
        return replace(self, headers=tuple((name, told.get(name, value)) for name, value in self.headers))


def chunk_of_letters(topic: str, letters: Sequence[DeadLetter]) -> Chunk:
    """Return dead letters as records for a topic."""
    return Chunk.from_columns(
        topic,
        [letter.key for letter in letters],
        [letter.value for letter in letters],
        [letter.timestamp_ms for letter in letters],
        headers=[letter.headers for letter in letters],
    )


class TaskProblems:
    """The `Problems` of one task. `chunks` is set by the task to what is being processed.

    `places`: the counts, place by place; `samples`: the first one of each. Letters name the application: several may share a
    topic. `is_silent`: nothing is logged, because all of it comes again.
    """

    def __init__(
        self, task: str, *, handlers: Handlers, keeps_letters: bool, application: str = "", is_silent: bool = False
    ) -> None:
        self._task = task
        self._whose = {"application": application, "task": task}
        self._handlers = handlers
        self._keeps_letters = keeps_letters
        self._logged = 0 if is_silent else _LOGGED_IN_FULL
        self.counts: Counter[str] = Counter()
        self.places: Counter[Place] = Counter()
        self.samples: dict[Place, str] = {}
        self.letters: list[DeadLetter] = []
        self.chunks: Sequence[Chunk] = ()

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        """Count and log one record (see `streams.seams.Problems`). Raises PoisonRecord when the setting is to stop."""
        self.counts[reason] += 1
        is_bad = reason in BAD_RECORDS
        where = f"{topic}-{partition} offset {offset}" if topic else _OF_NO_RECORD
        record = self._record(topic, partition, offset) if is_bad else None
        told = _raised(cause) if reason == "callable" else cause
        problem = Problem(reason, self._task, node, topic, partition, offset, record, cause)
        if is_bad and self._handlers.decide(problem) is OnProblem.STOP:
            raise PoisonRecord(
                f"task {self._task}, node {node}: cannot process {where} ({reason}): {told}; correct the topology, or set "
                "on_problem='skip' to count such records and go on"
            )
        self._count_place(Place(node, topic, reason), where, told)
        if self.counts[reason] <= self._logged:
            more = "; more of this kind are counted only" if self.counts[reason] == _LOGGED_IN_FULL else ""
            is_first = self.counts[reason] == 1
            level = logging.WARNING if is_bad or is_first else logging.INFO
            hint = f" ({HINTS[reason]})" if is_first and reason in HINTS else ""
            _log.log(level, "task %s, node %s: %s left out (%s): %s%s%s", self._task, node, where, reason, told, hint, more)
        if self._keeps_letters and record is not None:
            facts = {"topic": topic, "partition": partition, "offset": offset, **self._whose, "node": node, "reason": reason}
            self.letters.append(_letter(record, facts | _cause(cause)))

    def refused(self, node: str, topic: str, record: Record, cause: object, *, is_computed: bool = False) -> None:
        """Count and log a record put out that its topic does not take. Raises PoisonRecord when the setting is to stop.

        `is_computed`: the record says its topic itself, so there is no end of topics to count by.
        """
        self.counts["refused"] += 1
        what = f"a record for {topic!r} (key {record.key!r:.100}, time {record.timestamp_ms})"
        problem = Problem("refused", self._task, node, topic, -1, -1, record, cause)
        if self._handlers.decide(problem) is OnProblem.STOP:
            raise PoisonRecord(
                f"task {self._task}, node {node}: the log does not take {what}: {cause}; correct the topology or the topic, or "
                "set on_problem='skip' to count such records and go on"
            )
        self._count_place(Place(node, "" if is_computed else topic, "refused"), what, cause)
        if self.counts["refused"] <= self._logged:
            _log.warning("task %s, node %s: the log does not take %s: %s", self._task, node, what, cause)
        if self._keeps_letters:
            facts = {"topic": topic, **self._whose, "node": node, "reason": "refused"}
            self.letters.append(_letter(record, facts | _cause(cause)))

    def missed(self, node: str, source: TopicPartition, start: int, stop: int) -> None:
        """Count the records start..stop of an input, which the log deleted before they were read."""
        self.counts["deleted"] += stop - start
        place = Place(node, source.topic, "deleted")
        self.places[place] += stop - start
        self.samples.setdefault(
            place, f"{source.topic}-{source.partition} offset {start}: deleted by retention before it was read"
        )

    def _count_place(self, place: Place, what: str, cause: object) -> None:
        self.places[place] += 1
        if place not in self.samples:
            self.samples[place] = f"{what}: {cause}"[:_SAMPLE_MAX]

    def add(self, counts: Mapping[str, int], left_out: Sequence[LeftOut]) -> None:
        """Add what another has counted."""
        self.counts.update(counts)
        for each in left_out:
            place = Place(each.node, each.topic, each.reason)
            self.places[place] += each.records
            self.samples.setdefault(place, each.first)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what was left out place by place, with the first record of each."""
        return added_up(LeftOut(*place, records, self.samples.get(place, "")) for place, records in self.places.items())

    def _record(self, topic: str, partition: int, offset: int) -> Record | None:
        """Return the record that is being processed, if it is this one."""
        chunk = next((chunk for chunk in self.chunks if (chunk.topic, chunk.partition) == (topic, partition)), None)
        if chunk is None:
            return None
        at = int(chunk.offsets.searchsorted(offset))
        if at == len(chunk) or int(chunk.offsets[at]) != offset:
            return None
        return next(chunk.slice(at, at + 1).records())

    def take_letters(self) -> list[DeadLetter]:
        """Return the kept records since the last call."""
        taken, self.letters = self.letters, []
        return taken


def _raised(cause: object) -> object:
    """Return what a callable has raised as it is told: with the user's line, and its type, which may be all that it says."""
    if not isinstance(cause, Exception):
        return cause
    lines = dict(traceback.walk_tb(cause.__traceback__))  # where each raised; a frame tells the line that it ran last
    frame = users_frame(lines)
    where = "" if frame is None else f" in {named(frame, lines[frame])}"
    kind = "" if isinstance(cause, LogflumeError) else f"{type(cause).__name__}: "
    return f"{kind}{cause}{where}"


def _cause(cause: object) -> dict[str, str]:
    """Return the facts of a cause, under KIP-1034's names."""
    facts = {"message": str(cause)[:_MESSAGE_MAX]}
    if isinstance(cause, BaseException):
        facts["exception"] = f"{type(cause).__module__}.{type(cause).__qualname__}"
        if cause.__traceback__ is not None:
            facts["stacktrace"] = "".join(traceback.format_exception(cause))[-_STACKTRACE_MAX:]
    return facts


def _letter(record: Record, facts: Mapping[str, object]) -> DeadLetter:
    headers = tuple((f"{HEADER_PREFIX}{name}", str(value).encode()) for name, value in facts.items())
    return DeadLetter(record.key, record.value, max(record.timestamp_ms, 0), (*record.headers, *headers))


def letter_facts(headers: Headers) -> dict[str, str]:
    """Return what the headers of a dead letter say of it; nothing for those of a record that is none."""
    found = ((name, value) for name, value in headers if name.startswith(HEADER_PREFIX) and value is not None)
    return {name.removeprefix(HEADER_PREFIX): value.decode(errors="replace") for name, value in found}


def log_lost_letter(record: Record, cause: object) -> None:
    """Say what not even the dead letter topic takes; where it came from is in its headers."""
    _log.error("the dead letter topic does not take a record, which is lost: %s: %s", letter_facts(record.headers), cause)
