"""Power cuts at every disk operation, and a model of a partition's log under appends, truncation, deletion and crashes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logflume.log import storage
from logflume.log.batch import decode_records, encode_batch, iter_batches
from logflume.log.storage import LogConfig, PartitionLog
from logflume.log.storage.testing import PowerCut, SimulatedDisk

DIRECTORY = "/data/t-0"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=150, retention_ms=-1)


def open_log(disk: SimulatedDisk, config: LogConfig = CONFIG) -> PartitionLog:
    disk.make_dir("/data")
    disk._synced_names.setdefault("/data", None)
    return storage.open_log(DIRECTORY, disk=disk, config=config, now_ms=0)


def batch(first: int, count: int, *, producer: tuple[int, int] | None = None, is_transactional: bool = False) -> bytearray:
    """A batch whose values say which offsets the records are meant to get."""
    values = [str(first + i).encode() for i in range(count)]
    extra = {} if producer is None else {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
    return encode_batch([None] * count, values, [first + i for i in range(count)], is_transactional=is_transactional, **extra)


def read_values(log: PartitionLog, offset: int, max_bytes: int = 300) -> dict[int, bytes | None]:
    """Everything from `offset` to the durable end, through as many reads as it takes."""
    found: dict[int, bytes | None] = {}
    while offset < log.durable_offset:
        piece = log.read(offset, max_bytes)
        assert piece.size_bytes, f"nothing at {offset} below {log.durable_offset}"
        data = piece.read()
        for position, header in iter_batches(data):
            if not header.is_control:
                found |= {r.offset: r.value for r in decode_records(data, position) if r.offset >= offset}
            last_offset = header.last_offset
        assert last_offset >= offset
        offset = last_offset + 1
    return found


def expected_values(start: int, end: int) -> dict[int, bytes]:
    return {i: str(i).encode() for i in range(start, end)}


def run_story(log: PartitionLog, acked: list[int]) -> None:
    """Appends over several segments, with checkpoints, deletion, truncation and closing; notes in `acked` what was promised.

    acked: [durable offset that must survive, log start offset that must hold, lowest end a truncation may leave].
    """
    for i in range(12):
        log.append(batch(log.log_end_offset, 1 + i % 3), leader_epoch=i // 4, now_ms=0)
        if i % 2:
            acked[0] = max(acked[0], log.flush())
        if i == 7:
            log.checkpoint()
    acked[0] = log.flush()
    acked[1] = log.delete_records_before(9)
    acked[0] = 14
    log.truncate_to(14)
    assert log.durable_offset <= 14
    acked[0] = log.durable_offset
    for _ in range(3):
        log.append(batch(log.log_end_offset, 2), leader_epoch=5, now_ms=0)
    acked[0] = log.flush()
    log.close()


def steps_of_story() -> int:
    disk = SimulatedDisk()
    run_story(open_log(disk), [0, 0])
    return disk.steps


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    total = steps_of_story()
    assert total > 100
    for step in range(total):
        disk = SimulatedDisk()
        disk.make_dir("/data")
        disk._synced_names.setdefault("/data", None)
        disk.cut_at_step = step
        acked = [0, 0]
        end = -1
        try:
            log = open_log(disk)
            run_story(log, acked)
        except PowerCut:
            end = acked[0]
        assert end >= 0, "the power was cut"
        disk.crash(random.Random(seed * 1000 + step))
        log = open_log(disk)
        assert log.durable_offset >= min(end, 13), (step, log.recovery)
        if acked[0] != 14 or end != 14:
            assert log.durable_offset >= end, (step, log.recovery)
        assert log.log_start_offset >= acked[1]
        start = log.log_start_offset
        assert read_values(log, start) == expected_values(start, log.log_end_offset), step
        before = dict(disk._names)
        log.abandon()
        again = open_log(disk)
        assert not again.recovery.truncated_bytes, (step, again.recovery)
        assert (again.log_start_offset, again.log_end_offset) == (start, log.log_end_offset)
        assert {path: inode and bytes(inode.content) for path, inode in before.items()} == {
            path: inode and bytes(inode.content) for path, inode in disk._names.items()
        }


@pytest.mark.parametrize("seed", range(20))
def test_a_new_log_is_on_disk_once_it_is_open(seed: int) -> None:
    disk = SimulatedDisk()
    topic_id = open_log(disk).topic_id
    disk.crash(random.Random(seed))
    names = disk.list(DIRECTORY)
    assert {"partition.metadata", "00000000000000000000.log", "logflume.checkpoint"} <= set(names), names
    log = open_log(disk)
    assert (log.topic_id, log.log_end_offset, log.recovery.truncated_bytes) == (topic_id, 0, 0)
    log.append(batch(0, 2), leader_epoch=0, now_ms=0)
    assert log.flush() == 2


def run_aborts(log: PartitionLog, aborted: list[tuple[int, int]]) -> None:
    """Aborted transactions with checkpoints in between; notes in `aborted` (first, last offset) of those that are durable."""
    for i in range(8):
        first = log.log_end_offset
        log.append(batch(first, 2, producer=(7, 2 * i), is_transactional=True), leader_epoch=0, now_ms=0)
        log.append_marker(producer_id=7, producer_epoch=0, coordinator_epoch=0, is_commit=False, leader_epoch=0, now_ms=0)
        log.flush()
        aborted.append((first, first + 2))
        if i % 2:
            log.checkpoint()
    log.close()


@pytest.mark.parametrize("seed", range(2))
def test_aborted_transactions_survive_a_crash_at_any_operation(seed: int) -> None:
    disk = SimulatedDisk()
    run_aborts(open_log(disk), [])
    for step in range(disk.steps):
        disk = SimulatedDisk()
        disk.make_dir("/data")
        disk._synced_names.setdefault("/data", None)
        disk.cut_at_step = step
        aborted: list[tuple[int, int]] = []
        with pytest.raises(PowerCut):
            run_aborts(open_log(disk), aborted)
        disk.crash(random.Random(seed * 1000 + step))
        log = open_log(disk)
        found = [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, log.log_end_offset)]
        assert found[: len(aborted)] == aborted, step


class PartitionLogModel(RuleBasedStateMachine):
    """The model is a range of offsets (values say their offset), plus what idempotent producers and transactions did."""

    @initialize(segment_bytes=st.sampled_from([200, 500, 10_000]), flush=st.sampled_from(["fsync", "fsync", "os"]))
    def begin(self, segment_bytes: int, flush: str) -> None:
        self.disk = SimulatedDisk()
        self.config = replace(CONFIG, segment_bytes=segment_bytes, flush=flush)
        self.log = open_log(self.disk, self.config)
        self.control: set[int] = set()
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.end = 0

    def _forget_from(self, end: int) -> None:
        self.end = end
        self.control = {offset for offset in self.control if offset < end}
        self.ended = [each for each in self.ended if each[0] < end]

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        info = self.log.append(batch(self.end, count), leader_epoch=0, now_ms=0)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.end += count

    @rule(producer=st.integers(1, 2), count=st.integers(1, 3))
    def append_idempotent_twice(self, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        data = batch(self.end, count, producer=(producer, sequence))
        first = self.log.append(data, leader_epoch=0, now_ms=0)
        second = self.log.append(data, leader_epoch=0, now_ms=0)
        assert second == first._replace(is_duplicate=True)
        self.sequences[producer] = sequence + count
        self.end += count

    @rule(producer=st.integers(10, 12), count=st.integers(1, 3))
    def append_in_transaction(self, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        data = batch(self.end, count, producer=(producer, sequence), is_transactional=True)
        self.log.append(data, leader_epoch=0, now_ms=0)
        self.open.setdefault(producer, self.end)
        self.sequences[producer] = sequence + count
        self.end += count

    @precondition(lambda self: self.open)
    @rule(is_commit=st.booleans())
    def end_transaction(self, is_commit: bool) -> None:
        producer, first = self.open.popitem()
        self.log.append_marker(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit, leader_epoch=0, now_ms=0
        )
        if not is_commit:
            self.aborted.append((producer, first, self.end))
        self.control.add(self.end)
        self.ended.append((self.end, first))
        self.end += 1

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = open_log(self.disk, self.config)
        assert self.log.recovery.is_clean
        assert self.log.durable_offset == self.end

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        durable = self.log.durable_offset if self.config.flush == "fsync" else 0
        self.disk.crash(random.Random(seed))
        self.log = open_log(self.disk, self.config)
        assert durable <= self.log.durable_offset <= self.end
        self._restart_producers(self.log.durable_offset)

    @rule()
    def kill(self) -> None:
        """The process dies, the machine does not: everything written is there, and is durable from then on."""
        self.log.abandon()
        self.log = open_log(self.disk, self.config)
        assert self.log.durable_offset == self.end

    @precondition(lambda self: not self.open)
    @rule(back=st.integers(0, 6))
    def truncate(self, back: int) -> None:
        offset = max(self.end - back, self.log.log_start_offset)
        self.log.truncate_to(offset)
        assert self.log.log_end_offset <= offset
        self._restart_producers(self.log.log_end_offset)

    def _restart_producers(self, end: int) -> None:
        """After a loss of the tail the model goes on with new producer ids' state as the log tells it."""
        if end == self.end:
            return
        self._forget_from(end)
        states = self.log._producers.states
        self.sequences = {producer: state.batches[-1].last_sequence + 1 for producer, state in states.items() if state.batches}
        for producer, state in states.items():
            for sent in state.batches:
                assert sent.last_offset < end, producer
        self.aborted = [each for each in self.aborted if each[2] < end]
        self.open = self.log.open_transactions()

    @rule(offset=st.integers(0, 60))
    def delete_records(self, offset: int) -> None:
        offset = min(offset, self.log.durable_offset)
        assert self.log.delete_records_before(offset) == max(offset, self.log.log_start_offset)

    @rule(back=st.integers(0, 50), max_bytes=st.sampled_from([1, 100, 1000]))
    def read(self, back: int, max_bytes: int) -> None:
        start = max(self.log.log_start_offset, self.log.durable_offset - back)
        found = read_values(self.log, start, max_bytes)
        assert found == {i: v for i, v in expected_values(start, self.log.durable_offset).items() if i not in self.control}

    @rule(offset=st.integers(0, 60))
    def find_by_time(self, offset: int) -> None:
        offset = max(offset, self.log.log_start_offset)
        data = [i for i in range(offset, self.log.durable_offset) if i not in self.control]
        found = self.log.offset_for_time(offset)
        assert (found and found.offset) == (data[0] if data else None)

    @invariant()
    def transactions_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        assert self.log.open_transactions() == self.open
        not_yet = [first for marker, first in self.ended if marker >= self.log.durable_offset]
        stable = min([*self.open.values(), *not_yet, self.log.durable_offset])
        assert self.log.last_stable_offset == stable
        start = self.log.log_start_offset
        expected = sorted(each for each in self.aborted if each[2] >= start)
        found = [tuple(each[:3]) for each in self.log.aborted_transactions(start, self.end)]
        assert sorted(found) == expected


TestPartitionLogModel = PartitionLogModel.TestCase
TestPartitionLogModel.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
