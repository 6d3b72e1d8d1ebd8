"""The judges of share and streams groups find what they are there for."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logflume.log.protocol import ErrorCode, messages

from ._attributes import attributes
from ._clients import Broken
from ._groups import ShareReader, StreamsMember
from ._history import At

AT = At("t", 0)


class Message:
    def __init__(self, value: str, offset: int) -> None:
        self._value, self._offset = value, offset

    def error(self) -> None: ...
    def topic(self) -> str:
        return AT.topic

    def partition(self) -> int:
        return AT.partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value.encode()

    def key(self) -> bytes:
        return attributes(self._value).key

    def headers(self) -> Any:
        return attributes(self._value).headers

    def timestamp(self) -> tuple[int, int]:
        return 1, attributes(self._value).timestamp_ms


class Consumer:
    """A share consumer that gives what it is told to, and confirms everything."""

    def __init__(self, *polls: list[Message]) -> None:
        self._polls = list(polls)

    def poll(self, timeout: float) -> list[Message]:
        return self._polls.pop(0) if self._polls else []

    def acknowledge(self, message: Message, kind: object) -> None: ...
    def close(self) -> None: ...
    def commit_sync(self, timeout: float) -> dict[TopicPartition, None]:
        return {TopicPartition(*AT): None}


def judged(monkeypatch: pytest.MonkeyPatch, *polls: list[Message], wanted: int) -> set[str]:
    monkeypatch.setattr("tests.soak._groups.RELEASED", 0.0)
    monkeypatch.setattr("tests.soak._groups.DRAIN_S", 0.1)
    reader = ShareReader("share", [AT], "", pause_s=0)
    monkeypatch.setattr(reader, "_consumer", lambda: Consumer(*polls))
    consumer = reader._consumer()
    for _ in polls:
        reader._step(consumer)
    found = {AT: [(offset, f"v{offset}") for offset in range(wanted)]}
    monkeypatch.setattr(reader, "_consumer", Consumer)
    return {anomaly.kind for anomaly in reader.anomalies(None, found)}  # type: ignore[arg-type]


def test_a_share_group_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Message("v0", 0), Message("v1", 1)
    assert judged(monkeypatch, [first], [second], wanted=2) == set()
    assert judged(monkeypatch, [first], [first, second], wanted=2) == {"share-again"}
    assert judged(monkeypatch, [first], wanted=2) == {"share-lost"}
    assert judged(monkeypatch, [first, Message("v7", 1)], wanted=2) == {"inconsistent-offsets"}


def test_a_streams_member_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    member = StreamsMember("streams", [AT], None, None, pause_s=0)  # type: ignore[arg-type]
    response = messages.StreamsGroupHeartbeatResponse
    tasks = [response.TaskIds(subtopology_id="0", partitions=[0])]
    answers = [
        response(member_epoch=1, active_tasks=tasks),
        response(member_epoch=2, active_tasks=[]),
        response(member_epoch=1, active_tasks=None),
        response(error_code=ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    monkeypatch.setattr(member, "_ask", lambda request: answers.pop(0))
    request = member._request("m", 0)
    assert member._beat(request, 0) == 1
    assert list(member.anomalies(None, {})) == []  # type: ignore[arg-type]
    assert member._beat(request, 1) == 2
    member._beat(request, 2)
    with pytest.raises(Broken):
        member._beat(request, 2)
    assert [each.kind for each in member.anomalies(None, {})] == ["tasks", "epoch-back", "member-lost"]  # type: ignore[arg-type]
