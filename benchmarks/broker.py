"""The broker over TCP: produce and fetch, small requests, start and idle memory.

Run: python -m benchmarks.broker [produce|fetch|small|confluent|start|idle|restart] [--json]

Raw figures come from frames made beforehand, so that the load generator costs little; the server's CPU is its own process's.
CPU per produce request is measured with logflume.flush=os, as the budget leaves fsync out; all else with fsync.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks._report import Figure, main
from logflume.log.batch import encode_batch
from logflume.log.protocol import frames, messages


@contextlib.contextmanager
def running_broker(data_dir: str, *configs: str) -> Iterator[tuple[str, int, psutil.Process, float]]:
    """Start a broker process; yield host, port, the process and the seconds until it was ready.

    It keeps everything: the records that are measured with have old timestamps.
    """
    begin_s = time.perf_counter()
    command = [sys.executable, *SERVER, "--data", data_dir, "--listen", "127.0.0.1:0"]
    for config in ("log.retention.ms=-1", *configs):
        command += ["--config", config]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready_s = time.perf_counter() - begin_s
        assert "ready" in line, line
        port = int(line.split("127.0.0.1:")[1].split(",")[0])
        yield "127.0.0.1", port, psutil.Process(process.pid), ready_s
    finally:
        process.terminate()
        process.wait(30)


SERVER = ["-m", "logflume.log.server"]


def call(sock: socket.socket, message: Any, version: int) -> Any:
    """Send one request and wait for its response."""
    sock.sendall(b"".join(frames.request_frame(message, version, 1, "bench")))
    size = int.from_bytes(_receive(sock, 4), "big")
    return frames.decode_response(memoryview(_receive(sock, size)), message.api_key, version)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return bytes(data)


def create_topic(sock: socket.socket, name: str, partitions: int) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    response = call(sock, messages.CreateTopicsRequest(topics=[topic]), 7)
    assert response.topics[0].error_code == 0, response


def produce_frame(topic: str, partition: int, records: bytes, *, acks: int) -> bytes:
    request = messages.ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            messages.ProduceRequest.TopicProduceData(
                name=topic, partition_data=[messages.ProduceRequest.PartitionProduceData(index=partition, records=records)]
            )
        ],
        transactional_id=None,
    )
    return b"".join(frames.request_frame(request, 9, 1, "bench"))


def batch_of(size_bytes: int, record_bytes: int) -> bytes:
    count = max(1, size_bytes // record_bytes)
    now_ms = time.time_ns() // 1_000_000
    return bytes(encode_batch([None] * count, [bytes(record_bytes)] * count, [now_ms] * count))


def pump(host: str, port: int, frame: bytes, *, connections: int, in_flight: int, seconds: float) -> tuple[int, float]:
    """Send the frame over and over, `in_flight` at a time on each connection; return requests answered and seconds."""
    counts = [0] * connections
    end_s = time.perf_counter() + seconds

    def run(index: int) -> None:
        with socket.create_connection((host, port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(frame)
            answer_bytes = int.from_bytes(_receive(sock, 4), "big") + 4
            _receive(sock, answer_bytes - 4)
            blob, scratch = frame * in_flight, bytearray(answer_bytes * in_flight)
            while time.perf_counter() < end_s:
                sock.sendall(blob)
                left = len(scratch)
                while left:
                    left -= sock.recv_into(scratch, left)
                counts[index] += in_flight

    threads = [threading.Thread(target=run, args=(index,)) for index in range(connections)]
    begin_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.perf_counter() - begin_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def produce() -> Iterator[Figure]:
    """Batches of 64 KB, 4 connections, 5 in flight; best of three short runs."""
    with tempfile.TemporaryDirectory() as data_dir, running_broker(data_dir, "logflume.flush=os") as (host, port, process, _):
        cpu_us, python_us, rate = float("inf"), 0.0, 0.0
        for run in range(3):
            with socket.create_connection((host, port)) as sock:
                create_topic(sock, f"big{run}", 1)
            frame = produce_frame(f"big{run}", 0, batch_of(64 * 1024, 100), acks=-1)
            before_s, before_user_s = _cpu_s(process), process.cpu_times().user
            count, seconds = pump(host, port, frame, connections=4, in_flight=5, seconds=1)
            used_us = (_cpu_s(process) - before_s) / count * 1e6
            if used_us < cpu_us:
                cpu_us, python_us = used_us, (process.cpu_times().user - before_user_s) / count * 1e6
            rate = max(rate, count * len(frame) / seconds / 1e6)
        yield Figure("produce 64 KB batch: CPU per request, fsync apart", cpu_us, "us", 60, is_upper=True)
        yield Figure("  of it outside the kernel (which copies, writes and answers)", python_us, "us")
        yield Figure("produce 64 KB batches, no fsync", rate, "MB/s")
    with tempfile.TemporaryDirectory() as data_dir, running_broker(data_dir) as (host, port, process, _):
        with socket.create_connection((host, port)) as sock:
            create_topic(sock, "big0", 1)
        frame = produce_frame("big0", 0, batch_of(64 * 1024, 100), acks=-1)
        count, seconds = pump(host, port, frame, connections=4, in_flight=5, seconds=4)
        yield Figure("produce 64 KB batches, acks=all with fsync", count * len(frame) / seconds / 1e6, "MB/s")


def fetch() -> Iterator[Figure]:
    """Fetches of 1 MB and of 4 KB from the page cache, 4 connections, 2 in flight."""
    with tempfile.TemporaryDirectory() as data_dir, running_broker(data_dir) as (host, port, process, _):
        with socket.create_connection((host, port)) as sock:
            create_topic(sock, "log", 1)
        pump(host, port, produce_frame("log", 0, batch_of(64 * 1024, 100), acks=-1), connections=1, in_flight=5, seconds=0.5)
        for name, size_bytes in (("1 MB", 1024 * 1024), ("64 KB", 64 * 1024)):
            request = messages.FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                topics=[
                    messages.FetchRequest.FetchTopic(
                        topic="log",
                        partitions=[messages.FetchRequest.FetchPartition(partition=0, partition_max_bytes=size_bytes)],
                    )
                ],
            )
            frame = b"".join(frames.request_frame(request, 12, 1, "bench"))
            before_s = _cpu_s(process)
            count, seconds = pump(host, port, frame, connections=4, in_flight=2, seconds=2)
            gigabytes = count * size_bytes / 1e9
            yield Figure(f"fetch of {name} from the page cache", gigabytes / seconds * 1000, "MB/s")
            yield Figure(f"  CPU per GB: fetch of {name}", (_cpu_s(process) - before_s) / gigabytes, "s")


def small() -> Iterator[Figure]:
    """Requests with one record of 100 B, 10 connections, 20 in flight; and small metadata questions."""
    with tempfile.TemporaryDirectory() as data_dir, running_broker(data_dir) as (host, port, process, _):
        with socket.create_connection((host, port)) as sock:
            create_topic(sock, "small", 1)
        heartbeat = b"".join(
            frames.request_frame(messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, 1, "bench")
        )
        for name, frame, budget in (
            ("heartbeats", heartbeat, 50_000.0),
            ("produce of one 100 B record, acks=1", produce_frame("small", 0, batch_of(100, 100), acks=1), None),
            ("produce of one 100 B record, acks=all with fsync", produce_frame("small", 0, batch_of(100, 100), acks=-1), None),
        ):
            before_s = _cpu_s(process)
            count, seconds = pump(host, port, frame, connections=10, in_flight=20, seconds=3)
            yield Figure(f"small requests, 10 connections: {name}", count / seconds, "1/s", budget)
            yield Figure(f"  CPU per request: {name}", (_cpu_s(process) - before_s) / count * 1e6, "us")


def confluent() -> Iterator[Figure]:
    """confluent-kafka: a producer with acks=all, then a consumer of the same records (100 B each)."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    count, value = 1_000_000, b"v" * 100
    with tempfile.TemporaryDirectory() as data_dir, running_broker(data_dir) as (host, port, process, _):
        with socket.create_connection((host, port)) as sock:
            create_topic(sock, "records", 1)
        before_s, begin_s = _cpu_s(process), time.perf_counter()
        producer = Producer(
            {
                "bootstrap.servers": f"{host}:{port}",
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.messages": count,
                "batch.size": 1_000_000,
            }
        )
        for index in range(count):
            producer.produce("records", value)
            if index % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        seconds = time.perf_counter() - begin_s
        yield Figure("confluent-kafka produce, 100 B, acks=all with fsync", count / seconds, "records/s")
        yield Figure("  broker CPU per million records", (_cpu_s(process) - before_s) * 1e6 / count, "s")
        consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("records", 0, 0)])
        before_s, begin_s, got = _cpu_s(process), time.perf_counter(), 0
        while got < count:
            got += len(consumer.consume(10_000, timeout=1))
        seconds = time.perf_counter() - begin_s
        consumer.close()
        yield Figure("confluent-kafka consume, 100 B", count / seconds, "records/s")
        yield Figure("  broker CPU per million records", (_cpu_s(process) - before_s) * 1e6 / count, "s")


def start() -> Iterator[Figure]:
    """Start on a directory with 100 topics, after a clean stop; memory once it is ready."""
    with tempfile.TemporaryDirectory() as data_dir:
        with running_broker(data_dir) as (host, port, _, _), socket.create_connection((host, port)) as sock:
            record = batch_of(100, 100)
            for index in range(100):
                create_topic(sock, f"topic-{index}", 1)
                sock.sendall(produce_frame(f"topic-{index}", 0, record, acks=-1))
                _receive(sock, int.from_bytes(_receive(sock, 4), "big"))
        with running_broker(data_dir) as (_, _, process, ready_s):
            yield Figure("ready after start, 100 topics", ready_s, "s", 0.5, is_upper=True)
            yield Figure("idle memory (RSS), 100 topics", process.memory_info().rss / 1e6, "MB", 80, is_upper=True)
            with open(f"/proc/{process.pid}/maps") as maps:
                assert "numpy" not in maps.read(), "the broker must not import numpy"
    assert os.path.exists("/proc/self"), "needs Linux"


IDLE_CONNECTIONS = 1_000
RESTART_TOPICS, RESTART_PARTITIONS = 20, 100
RESTART_GIGABYTES = float(os.environ.get("LOGFLUME_BENCH_GB", "2"))
"""The budget is for 10 GB; what counts is the number of segments, and no byte of them is read after a clean stop."""


def idle() -> Iterator[Figure]:
    """A thousand connections that each asked one question and then are quiet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * IDLE_CONNECTIONS)), hard))
    with (
        tempfile.TemporaryDirectory() as data_dir,
        running_broker(data_dir) as (host, port, process, _),
        contextlib.ExitStack() as all_,
    ):
        before = process.memory_info().rss
        for _ in range(IDLE_CONNECTIONS):
            sock = all_.enter_context(socket.create_connection((host, port)))
            call(sock, messages.ApiVersionsRequest(), 2)
        grown = (process.memory_info().rss - before) / 1e6
        yield Figure(f"memory of {IDLE_CONNECTIONS} idle connections", grown, "MB", 40, is_upper=True)


def restart() -> Iterator[Figure]:
    """2,000 partitions: ready after a clean stop, and after SIGKILL with an unflushed tail to scan."""
    partitions = RESTART_TOPICS * RESTART_PARTITIONS
    batch = batch_of(900_000, 1000)
    rounds = max(1, int(RESTART_GIGABYTES * 1e9 / len(batch) / partitions))
    with tempfile.TemporaryDirectory() as data_dir:
        with running_broker(data_dir, "logflume.flush=os") as (host, port, _, _), socket.create_connection((host, port)) as sock:
            for index in range(RESTART_TOPICS):
                create_topic(sock, f"wide-{index}", RESTART_PARTITIONS)
            _fill(sock, batch, rounds)
        with running_broker(data_dir) as (_, _, process, ready_s):
            size = f"{partitions:,} partitions of {rounds * partitions * len(batch) / 1e9:.1f} GB"
            yield Figure(f"ready after a clean stop, {size}", ready_s, "s", 2, is_upper=True)
            yield Figure(f"  memory (RSS), {partitions:,} partitions", process.memory_info().rss / 1e6, "MB")
        with killed_broker(data_dir) as (host, port), socket.create_connection((host, port)) as sock:
            _fill(sock, batch_of(50_000, 1000), 1)
        with running_broker(data_dir) as (_, _, _, ready_s):
            tail_mb = partitions * 50_000 / 1e6
            yield Figure(f"ready after SIGKILL, {size}, {tail_mb:.0f} MB since the last checkpoint", ready_s, "s")


@contextlib.contextmanager
def killed_broker(data_dir: str) -> Iterator[tuple[str, int]]:
    """Run a broker that ends by SIGKILL, and never makes a checkpoint."""
    with running_broker(data_dir, "log.flush.offset.checkpoint.interval.ms=3600000") as (host, port, process, _):
        yield host, port
        process.kill()


def _fill(sock: socket.socket, batch: bytes, rounds: int) -> None:
    for _ in range(rounds):
        for topic in range(RESTART_TOPICS):
            for partition in range(RESTART_PARTITIONS):
                sock.sendall(produce_frame(f"wide-{topic}", partition, batch, acks=1))
                _receive(sock, int.from_bytes(_receive(sock, 4), "big"))


if __name__ == "__main__":
    main(produce, fetch, small, confluent, start, idle, restart)
