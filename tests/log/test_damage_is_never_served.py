"""A bit flipped anywhere in any file of a log: no reader gets other bytes, offsets or rows than were written, and it is named."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition

from logflume.log import TopicPartition, connect, storage
from logflume.log.errors import CorruptLog, LogflumeError
from logflume.log.server.shell import BrokerShell
from logflume.log.storage import CheckBudget, OsDisk, PartitionLog, Scrubber, run_compaction, verify_log
from logflume.log.storage.testing import SimulatedDisk

from ._damage import KINDS, Read, committed, config_of, fill, flips, topic_configs
from ._server_process import ServerProcess
from ._simulated_broker import made, make_topic

DIRECTORY = "/data/t-0"
NOW_MS = 1_700_000_000_000


def open_log(disk: SimulatedDisk, kind: str) -> PartitionLog:
    return storage.open_log(DIRECTORY, disk=disk, config=config_of(kind), now_ms=NOW_MS)


class Sound:
    """What a log serves before it is damaged: for each offset the place, for each place the bytes."""

    def __init__(self, log: PartitionLog) -> None:
        self.end, self.aborted = log.log_end_offset, log.aborted_transactions(0, log.log_end_offset)
        self.slices = {offset: log.read(offset, 100) for offset in range(self.end)}
        self.first_offsets = {offset: piece.first_offset for offset, piece in self.slices.items()}
        self.bytes = {s.path: s.file.read(0, s.size_bytes) for s in log._segments}
        self.times = {ms: log.offset_for_time(ms) for ms in range(NOW_MS, NOW_MS + 450, 45)}

    def check(self, log: PartitionLog, rng: random.Random) -> bool:
        """Compare a damaged log's answers with these; return whether it refused any."""
        is_refused = False
        for offset in rng.sample(range(self.end), self.end):
            try:
                piece = log.read(offset, rng.choice((1, 200, 10_000)), budget=CheckBudget())
            except CorruptLog:
                is_refused = True
                continue
            sound = self.slices[offset]
            assert piece.first_offset == self.first_offsets[offset]
            if piece.file is None or sound.file is None:
                assert piece.file is sound.file is None
                continue
            assert (piece.file.path, piece.position) == (sound.file.path, sound.position)
            assert piece.read() == self.bytes[piece.file.path][piece.position : piece.position + piece.size_bytes]
        try:
            assert log.aborted_transactions(0, self.end) == self.aborted
            assert {ms: log.offset_for_time(ms) for ms in self.times} == self.times
            for header, piece in log.headers(0):
                assert piece.read() == self.bytes[piece.file.path][piece.position : piece.position + header.size_bytes]  # type: ignore[union-attr]
        except CorruptLog:
            is_refused = True
        assert all(DIRECTORY in text for text in log.damages)
        return is_refused


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_damaged_log_serves_is_what_was_written(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(kind)
    disk = SimulatedDisk()
    disk.make_dir("/data")
    log = open_log(disk, kind)
    fill(log, kind, disk, now_ms=NOW_MS)
    log.close()
    before = disk.snapshot()
    sound = Sound(open_log(disk, kind))
    assert len(sound.bytes) >= 4
    assert verify_log(DIRECTORY, disk=disk) == [], "a sound log is called sound"
    names = {name: disk.size(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    refused = 0
    for name, position, bit in flips(names, rng, 160):
        disk.restore(before)
        disk.flip_bit(f"{DIRECTORY}/{name}", position, bit)
        where = f"bit {bit} of byte {position} of {name}"
        found = verify_log(DIRECTORY, disk=disk)
        if name.endswith(("log", "index", "checkpoint")) and f"{DIRECTORY}/{name}" in tails_apart(disk):
            assert [each.path for each in found] == [f"{DIRECTORY}/{name}"], where
        caplog.clear()
        try:
            damaged = open_log(disk, kind)
        except LogflumeError as error:
            refused += 1
            if DIRECTORY not in str(error):
                pytest.fail(f"{where}: {error} names no file")
            continue
        try:
            is_refused = sound.check(damaged, rng)
        except AssertionError as error:
            raise AssertionError(where) from error
        refused += is_refused
        assert is_refused == bool(damaged.damages), where
        assert is_refused or not name.endswith(".log"), f"{where} went unnoticed"
        assert all(text in caplog.text for text in damaged.damages)
    assert refused > 60


def tails_apart(disk: SimulatedDisk) -> list[str]:
    """Return the files whose damage is told for certain: not those of the last segment, which may be under way."""
    paths = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY)]
    last = max(path for path in paths if path.endswith(".log"))
    return [path for path in paths if not path.startswith(last[:-4])]


def test_a_flipped_offset_never_reaches_what_compaction_writes() -> None:
    disk = SimulatedDisk()
    disk.make_dir("/data")
    log = open_log(disk, "compacted")
    fill(log, "compacted", disk, now_ms=NOW_MS)
    plan = log.compaction_plan(NOW_MS, name="b")
    assert plan is not None
    rng = random.Random(3)
    before = disk.snapshot()
    for info in plan.segments:
        path = f"{DIRECTORY}/{info.base_offset:020d}.log"
        for _ in range(40 if info.size_bytes else 0):
            disk.restore(before)
            disk.flip_bit(path, rng.randrange(info.size_bytes), rng.randrange(8))
            with pytest.raises(CorruptLog, match=path):
                run_compaction(plan, disk=disk)


def test_a_spent_budget_gives_less_and_the_next_request_the_rest(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    disk.make_dir("/data")
    log = open_log(disk, "plain")
    fill(log, "plain", disk, now_ms=NOW_MS)
    log.close()
    log = open_log(disk, "plain")
    budget = CheckBudget()
    budget.spend(1 << 30)
    assert len(log.read(0, 10_000, budget=budget, min_one_batch=False)) == 0
    first = log.read(0, 10_000, budget=budget)
    assert 0 < len(first) < 400, "one batch all the same"
    assert len(log.read(0, 10_000, budget=CheckBudget())) > len(first)


def test_the_scrubber_names_damage_that_nobody_has_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        logs = []
        for name in ("good-0", "bad-0"):
            log = storage.open_log(str(tmp_path / name), disk=OsDisk(), config=config_of("plain"), now_ms=NOW_MS)
            fill(log, "plain", OsDisk(), now_ms=NOW_MS)
            logs.append(log)
        good, bad = logs
        path = Path(bad.sealed_segments()[1].path)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        scrubber = Scrubber()
        await scrubber.scrub(logs, now_ms=NOW_MS, interval_ms=1000, max_bytes_per_s=1e9)
        assert not good.damages
        assert [str(path) in text for text in bad.damages] == [True]
        assert str(path) in caplog.text
        caplog.clear()
        for now_ms in (NOW_MS + 500, NOW_MS + 1000):
            await scrubber.scrub(logs, now_ms=now_ms, interval_ms=1000, max_bytes_per_s=1e9)
        assert not caplog.text, "once is enough"
        scrubber.stop()
        await scrubber.scrub(logs, now_ms=NOW_MS + 5000, interval_ms=1000, max_bytes_per_s=1)

    asyncio.run(main())


def test_a_damaged_index_of_transactions_is_answered_at_once_and_stops_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def main() -> None:
        shell = await BrokerShell.start(str(data), has_unix_socket=False)
        await made(make_topic(shell.core, "t", 1, topic_configs("transactional")))
        partition = shell.core.partition("t", 0)
        assert partition is not None
        fill(partition.log, "transactional", OsDisk(), now_ms=NOW_MS)
        await shell.stop()

    asyncio.run(main())
    for path in (data / "t-0").glob("*.txnindex"):
        path.write_bytes(bytes(len(path.read_bytes())))
    server = ServerProcess(str(data))
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.address, "group.id": "g", "isolation.level": "read_committed", "fetch.wait.max.ms": 5000}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    assert [m for m in consumer.consume(100, timeout=1) if m.error() is None] == []
    consumer.close()
    began_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began_s < 8, "a stop waits for nothing that will not come"


PARTITIONS = 24
Partitions = dict[tuple[str, int], list[Read]]


def make_data(path: Path) -> Partitions:
    """Fill many partitions of every kind, as a broker that is stopped leaves them."""
    written: Partitions = {}

    async def main() -> None:
        shell = await BrokerShell.start(str(path), has_unix_socket=False)
        for kind in KINDS:
            await made(make_topic(shell.core, kind, PARTITIONS, topic_configs(kind)))
            for index in range(PARTITIONS):
                partition = shell.core.partition(kind, index)
                assert partition is not None
                fill(partition.log, kind, OsDisk(), now_ms=NOW_MS, seed=index)
                written[kind, index] = committed(partition.log)
        await shell.stop()

    logging.disable(logging.INFO)
    asyncio.run(main())
    logging.disable(logging.NOTSET)
    return written


def read_confluent(address: str, partitions: Partitions) -> Partitions:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "check.crcs": False,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(*key, 0) for key in partitions])
    found: Partitions = {key: [] for key in partitions}
    while messages := consumer.consume(5000, timeout=2):
        for message in messages:
            if message.error() is None:
                read = Read(
                    message.offset(), message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ())
                )
                found[message.topic(), message.partition()].append(read)
    consumer.close()
    return found


def read_aiokafka(address: str, partitions: Partitions) -> Partitions:
    async def run() -> Partitions:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level="read_committed", check_crcs=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        found: Partitions = {key: [] for key in partitions}
        consumer.assign([AioTopicPartition(*key) for key in partitions])
        for key in partitions:
            consumer.seek(AioTopicPartition(*key), 0)
        quiet_since_s = time.monotonic()
        while time.monotonic() - quiet_since_s < 2:
            for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                found[partition.topic, partition.partition] += [
                    Read(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in records
                ]
                quiet_since_s = time.monotonic()
        await consumer.stop()
        return found

    return asyncio.run(run())


def read_ours(address: str, partitions: Partitions) -> Partitions:
    found: Partitions = {key: [] for key in partitions}
    with connect(address) as log:
        consumer: Any = log.consumer()
        consumer.assign([TopicPartition(*key) for key in partitions])
        quiet_since_s = time.monotonic()
        while time.monotonic() - quiet_since_s < 2:
            for chunk in consumer.poll(timeout_s=0.2):
                for record in chunk.records():
                    headers = tuple((name, value) for name, value in record.headers)
                    found[record.topic, record.partition].append(
                        Read(record.offset, record.timestamp_ms, record.key, record.value, headers)
                    )
                quiet_since_s = time.monotonic()
        consumer.close()
    return found


READERS: list[Callable[[str, Partitions], Partitions]] = [read_confluent, read_aiokafka, read_ours]


@pytest.mark.slow
def test_clients_that_check_nothing_get_what_was_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(13)
    data = tmp_path / "data"
    written = make_data(data)
    damaged: dict[tuple[str, int], str] = {}
    for topic, index in written:
        if index % 8 == 0:
            continue  # sound ones, which are not to suffer
        directory = data / f"{topic}-{index}"
        names = {name: os.path.getsize(directory / name) for name in os.listdir(directory)}
        ((name, position, bit),) = list(flips(names, rng, 1 + index % 2))[-1:]
        content = bytearray((directory / name).read_bytes())
        content[position] ^= 1 << bit
        (directory / name).write_bytes(content)
        damaged[topic, index] = str(directory / name)
    server = ServerProcess(str(data))
    results = [read(server.address, written) for read in READERS]
    assert server.stop() == 0
    told = capfd.readouterr().err
    for found in results:
        for key, records in written.items():
            assert found[key] == records[: len(found[key])], f"{damaged.get(key)} was served"
            path = damaged.get(key, "")
            if not path:
                assert len(found[key]) == len(records)
            elif path.endswith(".log"):
                assert path in told, f"{path} is damaged and was not named"
