"""Whose an application is while its history is computed: a claim beside the committed offsets of its group.

The offsets of a claim are the cut, so that nobody who does not know of claims would read history either. A group takes offsets
from outside only while it has no members, and the engine refuses to go on from offsets that are claimed: so either the
application runs or it is claimed, and there is no moment between. The transaction that ends the hand-over overwrites the claim.

A claim of a driver that was killed is taken over by the next run (`claim`), or taken back (`abandon`), and what that driver had
written goes: its executors can write no more, since their transactional ids are taken after the claim has changed hands.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

from logflume.log import InvalidInput, KafkaError, Log, OffsetAndMetadata, TopicPartition, TransportError, UnknownName
from logflume.streams.runtime import internal_topics
from logflume.streams.runtime.positions import Claim, read_times, with_claim
from logflume.streams.seams import Plan

from .ranges import OffsetRange, with_records
from .writing import longest_transaction_ms, take_partition

_COMPUTED = (
    "being computed from its history: start it when that is done; if it was killed, run it once more, or take it back "
    "(logflume backfill ... --abort)"
)
_GONE_TIMEOUT_S = 30.0
_MADE_MAX_CHARS = 2_000
"""What fits beside an offset of names."""


def check_unused(log: Log, application: str, *, is_stable: bool = False) -> None:
    """Refuse an application that has members or committed offsets: its history has been computed, or is being."""
    admin = log.admin()
    if application not in admin.list_groups():
        return
    members = len(admin.describe_group(application).members)
    if members:
        raise InvalidInput(
            f"application {application!r} is running ({members} member{'s' * (members != 1)}): "
            "stop it, or give the backfill another name"
        )
    offsets = admin.group_offsets(application, is_stable=is_stable)
    if offsets and read_times(offsets).claim is None:
        raise InvalidInput(
            f"application {application!r} has committed offsets, so it has begun already: give the backfill another name, or "
            "delete the group and its internal topics to compute it again"
        )


def claim(log: Log, plan: Plan, ranges: Mapping[TopicPartition, OffsetRange], token: str, *, replaces: str = "") -> Claim:
    """Take an application that nobody runs, from a driver that was killed too: what that one left goes, if its token was another.

    Args:
        replaces: an application whose place it shall take.

    Raises:
        InvalidInput: it runs, has begun, or has state without offsets.
    """
    admin = log.admin()
    check_unused(log, plan.application, is_stable=True)
    former = claim_of(log, plan.application)
    existing = set(admin.list_topics(include_internal=True))
    if former is None:
        refuse_state(log, plan, existing)
    results = {topic for sub in plan.subtopologies for out in sub.outputs.values() for topic in out.topics()}
    made = sorted((results - existing - internal_topics(plan)) | set(former.made if former else ()))
    while sum(map(len, made)) > _MADE_MAX_CHARS:
        made.pop()
    if former is not None and former.token != token:
        release(log, former)
    ours = Claim(token, _COMPUTED, tuple(made), replaces)
    admin.set_group_offsets(plan.application, claimed(ranges, ours))
    if former is not None and former.token != token:
        _fence(log, plan, existing)
        delete_topics(log, internal_topics(plan) & existing)
    return ours


def claimed(ranges: Mapping[TopicPartition, OffsetRange], ours: Claim) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a claim as it stands beside the offsets of the cut."""
    return {tp: with_claim(OffsetAndMetadata(whole.end), ours) for tp, whole in ranges.items()}


def claim_of(log: Log, application: str, *, is_stable: bool = True) -> Claim | None:
    """Return who has an application for itself; `is_stable`: once no open transaction can change that any more."""
    return read_times(log.admin().group_offsets(application, is_stable=is_stable)).claim


def is_handed_over(log: Log, application: str) -> bool:
    """Return whether an application has a position that nobody claims, so that it can go on from there."""
    offsets = log.admin().group_offsets(application, is_stable=True)
    return bool(offsets) and read_times(offsets).claim is None


def check_claimed(log: Log, application: str, token: str) -> None:
    """Raise InvalidInput unless the application is ours."""
    held = claim_of(log, application)
    if held is None or held.token != token:
        raise InvalidInput(f"another run computes {application!r} by now: nothing of this one is visible")


def abandon(log: Log, plan: Plan, ours: Claim) -> bool:
    """Remove what was written under a claim, unless the application is somebody else's or has begun by now; return whether."""
    offsets = log.admin().group_offsets(plan.application, is_stable=True)
    held = read_times(offsets).claim
    if offsets and (held is None or held.token != ours.token):
        return False
    existing = set(log.admin().list_topics(include_internal=True))
    release(log, ours)
    _fence(log, plan, existing)
    delete_topics(log, (internal_topics(plan) | set(ours.made)) & existing)
    if offsets:
        log.admin().delete_group(plan.application)
    return True


def claim_stopped(log: Log, old: str, ours: Claim, new: str) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Take the application whose place another takes, so that nobody starts it again; return its offsets as they were.

    None: it runs.

    Raises:
        InvalidInput: somebody else has it.
    """
    admin = log.admin()
    if admin.describe_group(old).members:
        return None
    offsets = admin.group_offsets(old, is_stable=True)
    held = read_times(offsets).claim
    if held is not None and held.token != ours.token:
        raise InvalidInput(f"application {old!r} is {held.what}")
    what = f"being replaced by {new!r}: run that one when that is done; if it was killed, run or take back (--abort) its backfill"
    taken = {tp: with_claim(at, Claim(ours.token, what)) for tp, at in offsets.items()}
    try:
        admin.set_group_offsets(old, taken)
    except (InvalidInput, KafkaError):
        if admin.describe_group(old).members:
            return None
        raise
    return {tp: with_claim(at, None) for tp, at in offsets.items()}


def replaced(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], ours: Claim, new: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of an application whose place another has taken: nobody goes on from them."""
    what = f"replaced by {new!r}, which goes on where this one stopped: run that one"
    gone = Claim(ours.token, what, replaced_by=new)
    return {tp: with_claim(at, gone) for tp, at in offsets.items()}


def release(log: Log, ours: Claim) -> None:
    """Let an application be run again whose place was not taken."""
    if not ours.replaces:
        return
    offsets = log.admin().group_offsets(ours.replaces, is_stable=True)
    held = read_times(offsets).claim
    if held is not None and held.token == ours.token:
        log.admin().set_group_offsets(ours.replaces, {tp: with_claim(at, None) for tp, at in offsets.items()})


def refuse_state(log: Log, plan: Plan, existing: set[str]) -> None:
    """Refuse internal topics that hold records of an application without offsets. `existing`: all topics."""
    admin = log.admin()
    every = _partitions(log, internal_topics(plan) & existing)
    starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    filled = with_records(log, (OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in sorted(every)))
    if filled:
        topic = filled[0].rpartition("-")[0]
        raise InvalidInput(
            f"application {plan.application!r} has no committed offsets, but {topic!r} holds records of it (its offsets were "
            "deleted or have expired): delete its internal topics to compute it again, or give the backfill another name"
        )


def _fence(log: Log, plan: Plan, existing: set[str]) -> None:
    """Let nobody go on who has written changelogs under another claim."""
    changelogs = {topic for topic in internal_topics(plan) & existing if topic.endswith("-changelog")}
    longest_ms = longest_transaction_ms(log)
    for tp in _partitions(log, changelogs):
        take_partition(log, plan.application, tp, longest_ms).close()


def _partitions(log: Log, topics: Iterable[str]) -> list[TopicPartition]:
    described = log.admin().describe_topics(sorted(topics))
    return [TopicPartition(topic, p) for topic, found in described.items() for p in range(found.partitions)]


def delete_topics(log: Log, topics: Iterable[str]) -> None:
    """Delete topics, and return once topics of these names can be made anew.

    Raises:
        TransportError: they have not gone within 30 s.
    """
    admin = log.admin()
    gone = sorted(topics)
    for topic in gone:
        with contextlib.suppress(UnknownName):
            admin.delete_topic(topic)
    deadline = time.monotonic() + _GONE_TIMEOUT_S
    while left := admin.find_topics(gone):
        if time.monotonic() > deadline:
            raise TransportError(f"topics {sorted(left)} were deleted {_GONE_TIMEOUT_S:g} s ago and are still there; try again")
        time.sleep(0.05)
