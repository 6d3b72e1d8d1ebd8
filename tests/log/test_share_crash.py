"""Power cuts between the requests of share consumers: what was confirmed stays, everything else comes again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.broker.share.in_flight import AckType

from ._share_harness import Member, ShareBroker, ack_errors
from ._simulated_broker import LyingFlusher, SyncFlusher
from ._wire import batch

T0 = ("t", 0)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 5)),
        st.tuples(st.just("fetch"), st.integers(1, 8)),
        st.tuples(st.just("acknowledge"), st.integers(0, 2**16)),
        st.tuples(st.just("leave"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("retain"), st.integers(0, 10)),
        st.tuples(st.just("power cut"), st.just(0)),
    ),
    max_size=18,  # too few for the ten deliveries after which a record is given up
)
KINDS = (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT)


class History:
    """What one group of two members was told, and what it was given."""

    def __init__(self, path: Path, flusher: object) -> None:
        self.broker = ShareBroker(path, flusher=flusher)
        self.broker.inner.create("t")
        self.broker.set_group("g", share_auto_offset_reset="earliest", share_delivery_count_limit="10")
        self.produced = self.retained_from = 0
        self.settled: set[int] = set()
        self.held: dict[int, set[int]] = {}
        self._join()

    def _join(self) -> None:
        self.members = [Member(self.broker, f"m{n}", "t", connection=n) for n in range(2)]
        self.held = {n: set() for n in range(2)}

    def run(self, action: str, number: int) -> None:
        index = number % 2
        member = self.members[index]
        if action == "produce":
            assert self.broker.inner.produce("t", batch(*[b"v"] * number))[0].error_code == 0
            self.produced += number
        elif action == "fetch":
            self.take(index, number)
        elif action == "acknowledge":
            self._acknowledge(index, number)
        elif action == "leave" and member.session_epoch:
            member.fetch(epoch=-1)
            self.held[index] = set()
        elif action == "wait":
            self._wait(number)
        elif action == "retain":
            partition = self.broker.core.partition("t", 0)
            assert partition is not None
            self.retained_from = max(self.retained_from, min(number, self.produced))
            partition.log.delete_records_before(self.retained_from)
        elif action == "power cut":
            self.broker.power_cut()
            self._join()

    def _wait(self, seconds: int) -> None:
        """Let time pass, so that locks run out; the members report first, so that they stay."""
        for member in self.members:
            assert self.broker.heartbeat(member.name, topics=["t"]).error_code == 0
        self.broker.time.advance(seconds * 1000)

    def take(self, index: int, count: int) -> set[int]:
        """Fetch; what was confirmed must not come again."""
        partitions = () if self.members[index].session_epoch else (T0,)
        found = self.members[index].take(*partitions, max_records=count, share_acquire_mode=1)
        offsets = {n for first, last, _ in found for n in range(first, last + 1)}
        assert not offsets & self.settled, "a record came again although it was confirmed"
        self.held[index] |= offsets
        return offsets

    def _acknowledge(self, index: int, number: int) -> None:
        """Say something of the first record held; it may be another's by now."""
        if not self.held[index] or not self.members[index].session_epoch:
            return
        offset, kind = min(self.held[index]), KINDS[number // 2 % 3]
        self.held[index].discard(offset)
        (error,) = ack_errors(self.members[index].acknowledge({T0: {(offset, offset): [kind]}}))
        if error == 0 and kind is not AckType.RELEASE:
            self.settled.add(offset)

    def drain(self) -> set[int]:
        """Wait until every lock ran out, then take all there is."""
        self._wait(40)
        left: set[int] = set()
        while found := self.take(0, 500):
            left |= found
        return left


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_what_is_confirmed_stays_and_all_else_comes_again(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        history = History(Path(path), SyncFlusher())
        for action, number in steps:
            history.run(action, number)
        history.run("power cut", 0)
        expected = set(range(history.retained_from, history.produced)) - history.settled
        assert history.drain() == expected
        history.broker.close()


def test_a_disk_that_lies_is_found_out(tmp_path: Path) -> None:
    found = 0
    for attempt in range(20):
        path = tmp_path / str(attempt)
        path.mkdir()
        history = History(path, SyncFlusher())
        history.run("produce", 4)
        history.broker.inner.core._flusher = LyingFlusher()
        for action, number in (("fetch", 4), ("acknowledge", 0), ("power cut", attempt)):
            history.run(action, number)
        try:
            history.drain()
        except AssertionError as error:
            found += "came again" in str(error)
        history.broker.close()
    assert found, "what was not written is kept by chance, but not 20 times"
