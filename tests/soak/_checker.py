"""Looks for anomalies in a history: what a log must never do, whatever is killed. Pure; the definitions are Jepsen's for Kafka.

Not checked, because they are legal: writes of two transactions that interleave in a partition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ._history import (
    ABORTED,
    COMMITTED,
    FAILED,
    OK,
    SUBSCRIBED,
    At,
    EndSeen,
    History,
    OffsetCommit,
    OffsetRead,
    Polled,
    Sent,
    Transaction,
)

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not be."""

    kind: str
    text: str


def check(history: History) -> list[Anomaly]:
    """Return every anomaly of a history; [] for a sound one."""
    return [anomaly for rule in RULES for anomaly in rule(history)]


def lost_writes(history: History) -> Iterator[Anomaly]:
    """An acknowledged record (in a transaction: of a committed one) that is not at its offset in the end."""
    final = {(at, offset): value for at, values in history.committed.items() for offset, value in values}
    outcomes = _outcomes(history)
    for sent in _sent(history):
        counts = sent.txn is None or outcomes.get((sent.worker, sent.txn)) == COMMITTED
        if sent.outcome == OK and counts and final.get((sent.at, sent.offset)) != sent.value:
            found = final.get((sent.at, sent.offset), "nothing")
            yield Anomaly("lost-write", f"{sent.value} was acknowledged at {_place(sent.at, sent.offset)}; there is {found}")


def duplicates(history: History) -> Iterator[Anomaly]:
    """One value at two offsets: every producer here is idempotent."""
    for at, values in history.committed.items():
        for value, count in Counter(value for _, value in values).items():
            if count > 1:
                offsets = [offset for offset, each in values if each == value]
                yield Anomaly("duplicate", f"{value} is in {at.topic}-{at.partition} at {offsets}")


def inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    """One offset at which two values were seen, by whoever, whenever."""
    seen: dict[tuple[At, int], str] = {}
    final = ((at, offset, value) for at, values in history.uncommitted.items() for offset, value in values)
    polled = ((each.at, each.offset, each.value) for each in _polled(history))
    acked = ((each.at, each.offset, each.value) for each in _sent(history) if each.outcome == OK)
    committed = ((at, offset, value) for at, values in history.committed.items() for offset, value in values)
    for source in (final, committed, polled, acked):
        for at, offset, value in source:
            before = seen.setdefault((at, offset), value)
            if before != value:
                yield Anomaly("inconsistent-offsets", f"{_place(at, offset)} showed {before} and {value}")


def aborted_reads(history: History) -> Iterator[Anomaly]:
    """A value of an aborted transaction, or of a record whose send failed for good, that a read_committed consumer saw."""
    outcomes = _outcomes(history)
    bad = {
        sent.value
        for sent in _sent(history)
        if (sent.txn is not None and outcomes.get((sent.worker, sent.txn)) == ABORTED) or sent.outcome == FAILED
    }
    for polled in _polled(history):
        if polled.read_committed and polled.value in bad:
            yield Anomaly("aborted-read", f"{polled.worker} read {polled.value} at {_place(polled.at, polled.offset)}")
    for at, values in history.committed.items():
        for offset, value in values:
            if value in bad:
                yield Anomaly("aborted-read", f"{value} is visible at {_place(at, offset)}")


def torn_transactions(history: History) -> Iterator[Anomaly]:
    """A transaction of which some records are visible and others are not; or one that was never to be committed and is."""
    visible = {value for values in history.committed.values() for _, value in values}
    parts: dict[tuple[str, int], list[Sent]] = defaultdict(list)
    for sent in _sent(history):
        if sent.txn is not None:
            parts[sent.worker, sent.txn].append(sent)
    tried = {(txn.worker, txn.txn): txn.is_commit_tried for txn in _transactions(history)}
    for key, own in parts.items():
        shown = [sent.value for sent in own if sent.value in visible]
        if shown and len(shown) < len(own):
            yield Anomaly("torn-transaction", f"{key[0]} {key[1]}: {len(shown)} of {len(own)} records are visible, as {shown[0]}")
        if shown and not tried[key]:
            yield Anomaly("aborted-read", f"{key[0]} {key[1]} was never committed, and {shown[0]} is visible")


def poll_order(history: History) -> Iterator[Anomaly]:
    """Within one assignment a consumer that goes back, or skips a record that is there."""
    final = {True: history.committed, False: history.uncommitted}
    runs: dict[tuple[str, int, At, bool], list[int]] = defaultdict(list)
    for polled in _polled(history):
        if polled.session != SUBSCRIBED:
            runs[polled.worker, polled.session, polled.at, polled.read_committed].append(polled.offset)
    for (worker, session, at, read_committed), offsets in runs.items():
        there = [offset for offset, _ in final[read_committed].get(at, [])]
        index = {offset: position for position, offset in enumerate(there)}
        for before, after in pairwise(offsets):
            if after <= before:
                yield Anomaly("nonmonotonic-poll", f"{worker} ({session}) read {_place(at, after)} after {before}")
            elif before in index and after in index and index[after] != index[before] + 1:
                yield Anomaly(
                    "poll-skip", f"{worker} ({session}) read {_place(at, after)} after {before} and left out what is between"
                )


def send_order(history: History) -> Iterator[Anomaly]:
    """Records of one producer in a partition in another order than they were sent in. Copies are `inexact_copies`' matter."""
    targets = {copy.target for copy in history.copies}
    order = {sent.value: (sent.worker, sent.session, sent.number) for sent in _sent(history)}
    for at, values in history.uncommitted.items():
        if at.topic in targets:
            continue  # what a copier that died had begun is there too, and was copied again
        last: dict[tuple[str, int], int] = {}
        for offset, value in values:
            if value not in order:
                continue
            worker, session, number = order[value]
            if number < last.get((worker, session), -1):
                yield Anomaly("nonmonotonic-send", f"{value} is at {_place(at, offset)} behind number {last[worker, session]}")
            last[worker, session] = number


def unknown_values(history: History) -> Iterator[Anomaly]:
    """A value that nobody sent."""
    known = {sent.value for sent in _sent(history)}
    targets = {copy.target for copy in history.copies}
    for at, values in history.uncommitted.items():
        for offset, value in values:
            if at.topic not in targets and value not in known:
                yield Anomaly("unknown-value", f"nobody sent {value[:80]!r}, which is at {_place(at, offset)}")


def offsets_back(history: History) -> Iterator[Anomaly]:
    """A committed offset that is behind an acknowledged commit, or ahead of everything that was tried."""
    for events in history.lists.values():
        acked: dict[tuple[str, At], int] = {}
        tried: dict[tuple[str, At], set[int]] = defaultdict(set)
        for event in events:
            if isinstance(event, OffsetCommit):
                tried[event.group, event.at].add(event.offset)
                if event.outcome == OK:
                    acked[event.group, event.at] = event.offset
            elif isinstance(event, OffsetRead):
                key = (event.group, event.at)
                if event.offset < acked.get(key, -1):
                    yield Anomaly(
                        "offset-back", f"{event.group} is at {_place(event.at, event.offset)}, committed was {acked[key]}"
                    )
                elif event.offset >= 0 and event.offset not in tried[key]:
                    yield Anomaly(
                        "offset-unknown", f"{event.group} is at {_place(event.at, event.offset)}, which nobody committed"
                    )


def ends_back(history: History) -> Iterator[Anomaly]:
    """A high watermark or last stable offset that went back."""
    for events in history.lists.values():
        last: dict[tuple[At, bool], int] = {}
        for event in events:
            if isinstance(event, EndSeen):
                before = last.get((event.at, event.read_committed), 0)
                if event.offset < before:
                    what = "last stable offset" if event.read_committed else "high watermark"
                    yield Anomaly(
                        "end-back", f"the {what} of {event.at.topic}-{event.at.partition} went from {before} to {event.offset}"
                    )
                last[event.at, event.read_committed] = event.offset


def inexact_copies(history: History) -> Iterator[Anomaly]:
    """A transactional copy that is not exactly the source up to the group's committed offset, in order."""
    for copy in history.copies:
        for at, values in history.committed.items():
            if at.topic != copy.source:
                continue
            upto = history.group_offsets.get((copy.group, at), -1)
            wanted = [value for offset, value in values if offset < upto]
            got = [value for _, value in history.committed.get(At(copy.target, at.partition), [])]
            if got != wanted:
                position = next(
                    (i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted))
                )
                yield Anomaly(
                    "inexact-copy",
                    f"{copy.target}-{at.partition} has {len(got)} records, the source {len(wanted)} below the committed offset "
                    f"{upto}; they differ from number {position} on",
                )


RULES: tuple[Callable[[History], Iterator[Anomaly]], ...] = (
    lost_writes,
    duplicates,
    inconsistent_offsets,
    aborted_reads,
    torn_transactions,
    poll_order,
    send_order,
    unknown_values,
    offsets_back,
    ends_back,
    inexact_copies,
)


def summary(history: History) -> dict[str, int]:
    """Return how much was there to be checked."""
    outcomes = Counter(_outcomes(history).values())
    sent = Counter(each.outcome for each in _sent(history))
    return {
        "kills": history.kills,
        "clients that died in a transaction": history.deaths,
        "records sent": sum(sent.values()),
        "records acknowledged": sent[OK],
        "transactions committed": outcomes[COMMITTED],
        "transactions aborted": outcomes[ABORTED],
        "transactions of unknown outcome": sum(outcomes.values()) - outcomes[COMMITTED] - outcomes[ABORTED],
        "records polled": sum(1 for _ in _polled(history)),
        "offset commits": sum(1 for _ in history.of(OffsetCommit)),
        "offsets read back": sum(1 for _ in history.of(OffsetRead)),
        "ends seen": sum(1 for _ in history.of(EndSeen)),
        "records in the log": sum(map(len, history.uncommitted.values())),
        "records copied exactly once": sum(
            len(values) for at, values in history.committed.items() if at.topic in {copy.target for copy in history.copies}
        ),
    }


def _sent(history: History) -> Iterator[Sent]:
    return (event for event in history.of(Sent) if isinstance(event, Sent))


def _polled(history: History) -> Iterator[Polled]:
    return (event for event in history.of(Polled) if isinstance(event, Polled))


def _transactions(history: History) -> Iterator[Transaction]:
    return (event for event in history.of(Transaction) if isinstance(event, Transaction))


def _outcomes(history: History) -> dict[tuple[str, int], str]:
    return {(txn.worker, txn.txn): txn.outcome for txn in _transactions(history)}


def _place(at: At, offset: int) -> str:
    return f"{at.topic}-{at.partition}@{offset}"
