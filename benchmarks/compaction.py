"""Compaction in the background: how fast it is, and what a producer notices of it.

Run: python -m benchmarks.compaction [--json]

A topic of a few hundred megabytes becomes compacted while another one takes 1,000 requests a second of one record each, acks=all
with fsync; their latency is measured before and during the compaction, in the same run.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from benchmarks._report import Figure, main
from benchmarks.broker import batch_of, call, create_topic, produce_frame, running_broker
from logflume.log import Chunk, connect
from logflume.log.protocol import messages

RATE = 1_000
QUIET_S = 5.0
KEYS = 100_000
SEGMENT_BYTES = 32 * 1024 * 1024


class Load:
    """One record a request, RATE a second on one connection, sent whether or not answers come; latencies in ms as they end."""

    def __init__(self, host: str, port: int, topic: str) -> None:
        self._sock = socket.create_connection((host, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = produce_frame(topic, 0, batch_of(100, 100), acks=-1)
        self._is_stopping = False
        self._sent_s: list[float] = []
        self.latencies_ms: list[float] = []
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        begin_s = time.perf_counter()
        while not self._is_stopping:
            due = int((time.perf_counter() - begin_s) * RATE)
            while len(self._sent_s) < due:
                self._sent_s.append(time.perf_counter())
                self._sock.sendall(self._frame)
            time.sleep(0.0005)

    def _receive(self) -> None:
        data = bytearray()
        while True:
            more = self._sock.recv(65536)
            if not more:
                return
            now_s = time.perf_counter()
            data += more
            while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                del data[: 4 + struct.unpack_from(">i", data)[0]]
                self.latencies_ms.append((now_s - self._sent_s[len(self.latencies_ms)]) * 1000)

    def stop(self) -> None:
        """Stop sending, and end."""
        self._is_stopping = True
        self._threads[0].join()
        self._sock.shutdown(socket.SHUT_RDWR)
        self._threads[1].join()
        self._sock.close()


def fill(address: str, topic: str, record_bytes: int, total_bytes: int) -> None:
    """Produce records of random keys, so that most of them are superseded."""
    rng = random.Random(1)
    count = 10_000
    values = [bytes(record_bytes - 20)] * count
    with connect(address) as log, contextlib.closing(log.producer()) as producer:
        for _ in range(total_bytes // (count * record_bytes)):
            keys = [b"key-%d" % rng.randrange(KEYS) for _ in range(count)]
            producer.send_chunk(topic, Chunk.from_columns(topic, keys, values, [1] * count), partition=0)
        producer.flush()


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def wait_for_compaction(process: psutil.Process, directory: Path, before_bytes: int) -> float:
    """Return the seconds between the start of the process that compacts and its result being in place."""
    deadline_s = time.perf_counter() + 120
    while not process.children():
        assert time.perf_counter() < deadline_s, "no compaction was started"
        time.sleep(0.01)
    begin_s = time.perf_counter()
    while size_of(directory) > before_bytes * 0.9 or any(directory.glob("*.cleaned")):
        assert time.perf_counter() < deadline_s, "the compaction did not end"
        time.sleep(0.01)
    return time.perf_counter() - begin_s


def compact_from_now_on(sock: socket.socket, topic: str) -> None:
    request = messages.IncrementalAlterConfigsRequest
    change = request.AlterableConfig(name="cleanup.policy", config_operation=0, value="compact")
    resource = request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    response = call(sock, request(resources=[resource]), 1)
    assert response.responses[0].error_code == 0, response


def p99(latencies_ms: list[float]) -> float:
    return float(np.percentile(latencies_ms, 99))


def compaction() -> Iterator[Figure]:
    """1 KB records, then 100 B records."""
    for name, record_bytes, total_bytes in (("1 KB", 1000, 400_000_000), ("100 B", 100, 300_000_000)):
        with (
            tempfile.TemporaryDirectory() as data_dir,
            running_broker(data_dir, "log.cleaner.backoff.ms=500", f"log.segment.bytes={SEGMENT_BYTES}") as (
                host,
                port,
                process,
                _,
            ),
            socket.create_connection((host, port)) as sock,
        ):
            create_topic(sock, "table", 1)
            create_topic(sock, "beside", 1)
            fill(f"{host}:{port}", "table", record_bytes, total_bytes)
            directory = Path(data_dir) / "table-0"
            before_bytes = size_of(directory)
            load = Load(host, port, "beside")
            time.sleep(QUIET_S)
            quiet = len(load.latencies_ms)
            compact_from_now_on(sock, "table")
            seconds = wait_for_compaction(process, directory, before_bytes)
            during = load.latencies_ms[quiet:]
            load.stop()
            quiet_ms, busy_ms = p99(load.latencies_ms[RATE:quiet]), p99(during)
            yield Figure(f"compaction beside a producer, {name} records", before_bytes / seconds / 1e6, "MB/s", 50)
            yield Figure("  produce p99 at 1,000 requests/s with fsync, before", quiet_ms, "ms", 10, is_upper=True)
            yield Figure("  produce p99 during the compaction, times that before", busy_ms / quiet_ms, "x", 2, is_upper=True)


if __name__ == "__main__":
    main(compaction)
