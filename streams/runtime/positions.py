"""What is kept beside a committed offset: the times that decide whether a record is late, and what the stores hold. (pure)

The text is JSON: {"time": running maximum of time of the input, "stores": {store: stream time}, "contents": {store: what it
holds}, "at": where the instance that runs the task answers questions}, all but the first once per task; "claim": who has the
application for itself meanwhile, so that nobody else runs it. Kafka refuses texts beyond `offset.metadata.max.bytes` (4096 by
default): contents that are too long are digests of themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from logflume.log import InvalidInput
from logflume.log.interfaces import OffsetAndMetadata
from logflume.log.records import TopicPartition
from logflume.streams.state import Checkpoint

_MAX_TEXT_BYTES = 3500
"""Leaves room for a claim of somebody else."""


class Claim(msgspec.Struct, frozen=True):
    """An application that nobody may run for now.

    Attributes:
        token: tells this claim from one before or after it.
        what: what it is claimed for, and what to do, in words.
        made: topics that did not exist when it was claimed.
        replaces: an application whose place this one shall take; "" none.
        replaced_by: the application that has taken its place; "" none.
    """

    token: str
    what: str
    made: tuple[str, ...] = ()
    replaces: str = ""
    replaced_by: str = ""


class _Text(msgspec.Struct, omit_defaults=True):
    time: int = -1
    stores: dict[str, int] = msgspec.field(default_factory=dict)
    contents: dict[str, str] = msgspec.field(default_factory=dict)
    at: str = ""
    id: str = ""
    claim: Claim | None = None


_decode_text = msgspec.json.Decoder(_Text).decode


@dataclass(slots=True)
class Times:
    """Times read back from the offsets of one task.

    `ids`: of the topics that the offsets are of, where they were kept. `claim`: who has the application for itself.
    """

    inputs_ms: dict[TopicPartition, int] = field(default_factory=dict)
    stores_ms: dict[str, int] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    at: str = ""
    ids: dict[TopicPartition, str] = field(default_factory=dict)
    claim: Claim | None = None


def to_offsets(
    checkpoint: Checkpoint, contents: Mapping[str, str], at: str = "", *, ids: Mapping[str, str] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offset commit of a task: its positions, with times and contents of its stores and its address as metadata.

    `ids`: topic -> its id: an offset means nothing in another topic of the same name.
    """
    offsets, known = {}, ids or {}
    for place, partition in enumerate(sorted(checkpoint.inputs)):
        time_ms = checkpoint.input_times_ms.get(partition, -1)
        brief = _Text(time_ms, id=known.get(partition.topic, ""))
        text = _text(brief, checkpoint.store_times_ms, contents, at) if place == 0 else msgspec.json.encode(brief)
        offsets[partition] = OffsetAndMetadata(checkpoint.inputs[partition], text.decode())
    return offsets


def _text(brief: _Text, stores: dict[str, int], contents: Mapping[str, str], at: str) -> bytes:
    """Return as much as has room, the most telling form first."""
    digests = {store: digest(text) for store, text in contents.items()}
    time_ms, topic = brief.time, brief.id
    forms = (
        _Text(time_ms, stores, dict(contents), at, topic),
        _Text(time_ms, stores, digests, at, topic),
        _Text(time_ms, stores, at=at, id=topic),
    )
    for form in forms:
        text = msgspec.json.encode(form)
        if len(text) <= _MAX_TEXT_BYTES:
            return text
    return msgspec.json.encode(_Text(time_ms, at=at, id=topic))


def digest(text: str) -> str:
    """Return a short stand-in for a text.

    >>> digest("n = count() BIGINT by user STRING as KAFKA")
    '#936fb68b'
    """
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def changed_contents(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (store, what it held, what it shall hold) of the stores that mean something else than they did."""
    return [
        (store, before[store], text)
        for store, text in now.items()
        if store in before and before[store] not in (text, digest(text))
    ]


def read_times(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Times:
    """Return the times kept beside committed offsets; text that is not ours (a reset by hand) counts as none."""
    times = Times()
    for partition, offset in offsets.items():
        try:
            text = _decode_text(offset.metadata or "{}")
        except msgspec.MsgspecError:
            continue
        times.inputs_ms[partition] = text.time
        times.stores_ms.update(text.stores)
        times.contents.update(text.contents)
        times.at = text.at or times.at
        times.claim = text.claim or times.claim
        if text.id:
            times.ids[partition] = text.id
    return times


def with_claim(offset: OffsetAndMetadata, claim: Claim | None) -> OffsetAndMetadata:
    """Return a committed offset that says beside its times that the application is claimed, or no more."""
    try:
        text = _decode_text(offset.metadata or "{}")
    except msgspec.MsgspecError:
        text = _Text()
    return OffsetAndMetadata(offset.offset, msgspec.json.encode(msgspec.structs.replace(text, claim=claim)).decode())


def refuse_claimed(application: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Raise InvalidInput if somebody has the application for itself."""
    claim = read_times(offsets).claim
    if claim is not None:
        raise InvalidInput(f"application {application!r} is {claim.what}")


def addresses(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, str]:
    """Return where the instances answer that have committed these offsets, of the partitions beside which it is kept."""
    return {partition: at for partition, offset in offsets.items() if (at := read_times({partition: offset}).at)}
