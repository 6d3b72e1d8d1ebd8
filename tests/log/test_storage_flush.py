"""Group commit on an asyncio loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from logflume.log import storage
from logflume.log.batch import encode_batch
from logflume.log.storage import FlushScheduler, LogConfig, OsDisk, PartitionLog
from logflume.log.storage.slices import FlushTicket
from logflume.log.storage.testing import SimulatedDisk

BATCH = encode_batch([b"k"], [b"v"], [0])


def open_log(disk: Any, directory: str = "/data/t-0", **config: Any) -> PartitionLog:
    return storage.open_log(directory, disk=disk, config=LogConfig(**config), now_ms=0)


def append(log: PartitionLog) -> None:
    log.append(BATCH, leader_epoch=0, now_ms=0)


async def durable(scheduler: FlushScheduler, log: PartitionLog) -> Exception | None:
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    scheduler.request(log, done.set_result)
    return await done


def test_waiters_are_called_on_the_loop_once_their_records_are_durable(tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = FlushScheduler(asyncio.get_running_loop())
        logs = [open_log(OsDisk(), str(tmp_path / f"t-{i}")) for i in range(6)]
        ends: list[tuple[int, int]] = []

        async def produce(log: PartitionLog) -> None:
            for _ in range(20):
                append(log)
                end = log.log_end_offset
                assert await durable(scheduler, log) is None
                assert threading.current_thread() is threading.main_thread()
                ends.append((end, log.durable_offset))

        await asyncio.gather(*[produce(log) for log in logs for _ in range(3)])
        assert len(ends) == 6 * 3 * 20
        assert all(end <= durable_offset for end, durable_offset in ends)
        await scheduler.close()
        for log in logs:
            assert log.durable_offset == 60
            log.close()

    asyncio.run(main())


def test_what_has_arrived_already_joins_the_flush() -> None:
    async def main() -> None:
        loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
        scheduler, logs = FlushScheduler(loop), [open_log(SimulatedDisk(), f"/data/t-{i}") for i in range(2)]
        done: asyncio.Future[Exception | None] = loop.create_future()

        def on_request() -> None:
            loop.remove_reader(far)
            append(logs[1])
            scheduler.request(logs[1], done.set_result)

        with near, far:
            loop.add_reader(far, on_request)
            append(logs[0])
            near.send(b"one more")
            assert await durable(scheduler, logs[0]) is None
            assert await done is None
        assert scheduler.durations.count == 1
        await scheduler.close()

    asyncio.run(main())


def test_who_requests_again_when_called_back_gets_into_the_next_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called back before the rest was handed to the threads, for nothing was left to do: a second flush must not begin beside."""

    async def main() -> None:
        scheduler = FlushScheduler(asyncio.get_running_loop())
        logs = [open_log(SimulatedDisk(), f"/data/t-{i}") for i in range(3)]
        waits = threading.Event()
        done = [asyncio.get_running_loop().create_future() for _ in range(3)]

        def again(error: Exception | None) -> None:
            done[0].set_result(error)
            append(logs[2])
            scheduler.request(logs[2], done[2].set_result)
            asyncio.get_running_loop().call_later(0.05, waits.set)

        begun = []
        sync = FlushTicket.sync

        def slow_sync(ticket: FlushTicket) -> None:
            begun.append(ticket)
            waits.wait(10)
            assert len(begun) == 1 or done[1].done()
            sync(ticket)

        monkeypatch.setattr(FlushTicket, "sync", slow_sync)
        for log, callback in zip(logs, (again, done[1].set_result), strict=False):
            append(log)
            scheduler.request(log, callback)
        monkeypatch.setattr(logs[0], "begin_flush", lambda: None)
        assert await asyncio.wait_for(asyncio.gather(*done), 20) == [None, None, None]
        await scheduler.close()

    asyncio.run(main())


def test_who_hears_of_one_partition_finds_what_was_flushed_with_it_in_the_others() -> None:
    """A reader who waits for both would be woken for the first, answer with that, and come back for the second."""
    first_synced, seen = threading.Event(), []

    class SlowDisk(SimulatedDisk):
        loop: asyncio.AbstractEventLoop | None = None

        def step(self, operation: str, path: str) -> None:
            super().step(operation, path)
            if operation != "sync" or self.loop is None:
                return
            if "t-0" in path:
                first_synced.set()
                return
            assert first_synced.wait(30)
            for _ in range(5):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(30)

    async def main() -> None:
        disk = SlowDisk()
        scheduler, logs = FlushScheduler(asyncio.get_running_loop()), [open_log(disk, f"/data/t-{i}") for i in range(2)]
        disk.loop = asyncio.get_running_loop()
        for log in logs:
            append(log)
            scheduler.request(log, lambda _: seen.append([log.durable_offset for log in logs]))
        while len(seen) < 2:
            await asyncio.sleep(0)
        await scheduler.close()

    asyncio.run(main())
    assert seen == [[1, 1], [1, 1]]


def test_a_fault_nobody_foresaw_in_a_flush_is_told_to_who_waits() -> None:
    class BrokenDisk(SimulatedDisk):
        is_broken = False

        def step(self, operation: str, path: str) -> None:
            if operation == "sync" and self.is_broken:
                raise RuntimeError("no such fault")
            super().step(operation, path)

    async def main() -> None:
        disk = BrokenDisk()
        scheduler, log = FlushScheduler(asyncio.get_running_loop()), open_log(disk)
        append(log)
        disk.is_broken = True
        assert "no such fault" in str(await asyncio.wait_for(durable(scheduler, log), 30))
        await scheduler.close()

    asyncio.run(main())


def test_appends_during_a_flush_wait_for_the_next_one() -> None:
    class SlowDisk(SimulatedDisk):
        """Blocks each sync of a log until it is let through."""

        gate = threading.Semaphore(100)
        syncs = 0

        def step(self, operation: str, path: str) -> None:
            if operation == "sync" and path.endswith(".log"):
                self.gate.acquire()
                self.syncs += 1
            super().step(operation, path)

    async def main() -> None:
        disk = SlowDisk()
        log = open_log(disk)
        scheduler = FlushScheduler(asyncio.get_running_loop())
        disk.gate, disk.syncs = threading.Semaphore(0), 0
        results: list[int] = []
        for i in range(3):
            append(log)
            scheduler.request(log, lambda _, i=i: results.append(i))  # type: ignore[misc]
        while not scheduler._is_flushing:
            await asyncio.sleep(0)
        append(log)
        scheduler.request(log, lambda _: results.append(3))
        disk.gate.release()
        while len(results) < 3:
            await asyncio.sleep(0)
        assert (results, log.durable_offset, log.log_end_offset) == ([0, 1, 2], 3, 4)
        disk.gate.release(100)
        await scheduler.close()
        assert (results, log.durable_offset, disk.syncs) == ([0, 1, 2, 3], 4, 2)

    asyncio.run(main())


def test_a_failed_sync_reaches_every_waiter_and_no_later_append_is_taken() -> None:
    async def main() -> None:
        disk = SimulatedDisk()
        log, other = open_log(disk), open_log(disk, "/data/t-1")
        scheduler = FlushScheduler(asyncio.get_running_loop(), threads=1)
        append(log)
        disk.fail("sync")
        first, second = await asyncio.gather(durable(scheduler, log), durable(scheduler, log))
        assert "cannot sync" in str(first)
        assert first is second
        assert "takes no appends" in str(await durable(scheduler, log))
        append(other)
        assert await durable(scheduler, other) is None
        assert (log.durable_offset, other.durable_offset) == (0, 1)
        await scheduler.close()

    asyncio.run(main())


def test_nothing_to_wait_for_is_answered_at_once() -> None:
    async def main() -> None:
        scheduler = FlushScheduler(asyncio.get_running_loop())
        called: list[Exception | None] = []
        scheduler.request(open_log(SimulatedDisk()), called.append)
        relaxed = open_log(SimulatedDisk(), flush="os")
        append(relaxed)
        scheduler.request(relaxed, called.append)
        assert called == [None, None]
        await scheduler.close()
        await scheduler.close()

    asyncio.run(main())
