"""The collector of cyclic garbage looks at what is kept once, not again and again, and still finds what became garbage later."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from logflume.log.collector import ShortCollections

PROGRAM = """
import gc, weakref
from logflume.log.collector import LOOK_AGAIN_S, ShortCollections

class Node:
    pass

now_s = [0.0]
def clock():
    now_s[0] += 0.001
    return now_s[0]

ShortCollections(clock=clock, long_s=LONG_S).install()
assert len(gc.get_objects()) < 1000, "what is there at the start is left out"
kept = [Node() for _ in range(50_000)]
ring = Node()
ring.itself = ring
gc.collect()
print(len(gc.get_objects()) < 1000)
gone = weakref.ref(ring)
del ring
gc.collect()
print(gone() is None)
now_s[0] += LOOK_AGAIN_S
gc.collect()
print(gone() is None)
"""


def run(long_s: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("LONG_S)", f"{long_s})")], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_after_a_long_collection_its_survivors_are_left_out_for_an_hour() -> None:
    assert run("0.0005") == ["True", "False", "True"]


def test_after_a_short_one_nothing_is() -> None:
    assert run("10.0") == ["False", "True", "True"]


@pytest.fixture
def _usual_threshold() -> Iterator[None]:
    """Others in this process may have raised it."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_usual_threshold")
def test_an_engine_leaves_the_collector_as_it_was() -> None:
    callbacks, threshold = list(gc.callbacks), gc.get_threshold()
    with ShortCollections().over_batches():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > threshold[0]
    assert (gc.callbacks, gc.get_threshold(), gc.get_freeze_count()) == (callbacks, threshold, 0)
