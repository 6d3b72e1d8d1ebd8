"""Many engines of a process ask what their inputs are: one question for all, and nobody waits for another one's answer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from logflume.log import LogflumeError, TransportError, connect
from logflume.log.interfaces import TopicDescription
from logflume.streams.runtime.topic_look import FORGET_AFTER_S, LOOK_EVERY_S, TopicLook


class Topics:
    """What is asked of an admin here. `while_asked` runs before the answer is there."""

    def __init__(self, *names: str) -> None:
        self.ids = {name: f"{number:032x}" for number, name in enumerate(names)}
        self.asked: list[set[str]] = []
        self.while_asked: Any = lambda: None
        self.is_away = False

    def find_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        self.asked.append(set(names))
        self.while_asked()
        if self.is_away:
            raise TransportError("away")
        return {name: TopicDescription(name, self.ids[name], 1) for name in names if name in self.ids}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def topics() -> Topics:
    return Topics("a", "b", "c")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def look(topics: Topics, clock: Clock) -> TopicLook:
    return TopicLook(topics, monotonic_s=clock)  # type: ignore[arg-type]


def ids(found: Any) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in found.items()}


def test_a_round_of_many_engines_is_one_question(look: TopicLook, topics: Topics, clock: Clock) -> None:
    names = [f"t{n}" for n in range(500)]
    topics.ids.update(dict.fromkeys(names, "0" * 32))
    for name in names:
        look.newer([name], than_s=clock.now_s - 1)
    for _ in range(10):
        topics.asked.clear()
        clock.now_s += 1.0
        for name in names:
            assert look.newer([name], than_s=clock.now_s - 1) is not None
        assert topics.asked == [set(names)]


def test_what_is_told_was_asked_after_the_last_time(look: TopicLook, topics: Topics, clock: Clock) -> None:
    assert ids(look.newer(["a"], than_s=clock.now_s - 1)) == {"a": f"{0:032x}"}
    topics.ids["a"] = "f" * 32
    clock.now_s += LOOK_EVERY_S / 2
    assert ids(look.newer(["a"], than_s=clock.now_s - 1)) == {"a": f"{0:032x}"}, "as it was known half of that ago"
    assert ids(look.newer(["a"], than_s=clock.now_s - 0.01)) == {"a": "f" * 32}


def test_who_asks_holds_up_nobody(look: TopicLook, topics: Topics, clock: Clock) -> None:
    meanwhile = []
    topics.while_asked = lambda: meanwhile.append(look.newer(["b"], than_s=clock.now_s - 1))
    assert ids(look.newer(["a"], than_s=clock.now_s - 1)) == {"a": f"{0:032x}"}
    assert meanwhile == [None]


def test_a_topic_that_is_gone_is_left_out_and_one_that_nobody_reads_is_asked_for_no_more(
    look: TopicLook, topics: Topics, clock: Clock
) -> None:
    look.newer(["a", "b"], than_s=clock.now_s - 1)
    look.newer(["c"], than_s=clock.now_s - 1)
    del topics.ids["b"]
    clock.now_s += FORGET_AFTER_S + 1
    assert look.newer(["a", "b"], than_s=clock.now_s - 1) == {"a": TopicDescription("a", f"{0:032x}", 1)}
    assert topics.asked[-1] == {"a", "b"}


def test_a_log_that_is_away_is_told_and_asked_again(look: TopicLook, topics: Topics, clock: Clock) -> None:
    topics.is_away = True
    with pytest.raises(LogflumeError, match="away"):
        look.newer(["a"], than_s=clock.now_s - 1)
    topics.is_away = False
    assert ids(look.newer(["a"], than_s=clock.now_s - 1)) == {"a": f"{0:032x}"}


def test_the_real_admin_answers_as_it_is_asked(tmp_path: Path, clock: Clock) -> None:
    with connect(tmp_path) as log:
        admin = log.admin()
        admin.create_topic("in", partitions=3)
        found = TopicLook(admin, monotonic_s=clock).newer(["in", "none"], than_s=clock.now_s - 1)
        assert found == admin.describe_topics(["in"])
