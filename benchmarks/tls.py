"""What TLS costs the broker: records in and out, and a handshake, beside a plain listener and Apache Kafka in the same run.

Whom it is compared with takes turns with it, so that the ratios hold on a noisy machine; both write to the page cache. The budget
of a figure over TLS is what Kafka did; without Java or the jars (see tests/log/_kafka_java.py) it is left out.
Run: python -m benchmarks.tls [records|handshakes] [--rounds=N] [--json]
"""

from __future__ import annotations

import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from logflume.log.security import issue, make_authority
from tests.log import _kafka_java as kafka

from ._report import Figure, main
from .kafka import option

ROUNDS, BYTES, HANDSHAKES = 5, 64_000_000, 500
SIZES = (100, 1_000)
BARE = """
import socket, ssl, sys

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    with context.wrap_socket(listening.accept()[0], server_side=True) as sock:
        sock.recv(1)
"""


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[dict[str, int], psutil.Process]]:
    """Run a broker with a plain and an encrypted listener; give their ports and its process."""
    _issue(directory)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(directory / "server.pem"),
        "logflume.flush": "os",
    }
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(directory / "data")]
    command += [part for name, value in settings.items() for part in ("--config", f"{name}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        plain, encrypted = (int(part.split(",")[0]) for part in process.stdout.readline().split("127.0.0.1:")[1:3])
        yield {"PLAINTEXT": plain, "SSL": encrypted}, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def _issue(directory: Path) -> None:
    """Write an authority and a server's certificate with its key."""
    now = datetime.now(UTC)
    authority = make_authority("Benchmark", now=now)
    server = issue(authority, "localhost", now=now, hosts=["localhost", "127.0.0.1"], is_server=True)
    (directory / "ca.pem").write_bytes(authority.certificate_pem)
    (directory / "server.pem").write_bytes(server.key_pem + server.certificate_pem)


@contextmanager
def _kafka(directory: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run Apache Kafka with an encrypted listener and the same certificate; give its port and process."""
    folder = directory / "kafka"
    folder.mkdir()
    configs = ("ssl.keystore.type=PEM", f"ssl.keystore.location={directory / 'server.pem'}")
    running = kafka.KafkaBroker(folder, *configs, options=("-Xms1g", "-Xmx1g", kafka.QUIET), listeners=("SSL",))
    try:
        yield running.ports["SSL"], psutil.Process(running.process.pid)
    finally:
        running.stop()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _settings(protocol: str, port: int, directory: Path) -> dict[str, str | int]:
    own = {"ssl.ca.location": str(directory / "ca.pem")} if protocol == "SSL" else {}
    return {"bootstrap.servers": f"localhost:{port}", "security.protocol": protocol, **own}


def _produce(settings: dict[str, str | int], topic: str, size_bytes: int) -> None:
    producer = Producer({**settings, "linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.messages": 2_000_000})
    value = b"v" * size_bytes
    for number in range(BYTES // size_bytes):
        producer.produce(topic, value, partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def _consume(settings: dict[str, str | int], topic: str, count: int) -> None:
    consumer = Consumer({**settings, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = 0
    while got < count:
        got += len(consumer.consume(10_000, timeout=1))
    consumer.close()


@dataclass(frozen=True, slots=True)
class _Peer:
    """A listener to measure: its security protocol and port, the broker's process, seconds of (wall, CPU) by way and round."""

    protocol: str
    port: int
    process: psutil.Process
    spent_s: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"in": [], "out": []})

    def measure(self, directory: Path, topic: str, size_bytes: int, *, is_kept: bool) -> None:
        settings = _settings(self.protocol, self.port, directory)
        times = [(time.perf_counter(), _cpu_s(self.process))]
        _produce(settings, topic, size_bytes)
        times.append((time.perf_counter(), _cpu_s(self.process)))
        _consume(settings, topic, BYTES // size_bytes)
        times.append((time.perf_counter(), _cpu_s(self.process)))
        for way, begin, end in zip(("in", "out"), times, times[1:], strict=False):
            if is_kept:
                self.spent_s[way].append((end[0] - begin[0], end[1] - begin[1]))

    def median(self, way: str, which: int) -> float:
        """Return seconds a gigabyte: wall (0) or CPU (1)."""
        return statistics.median(each[which] for each in self.spent_s[way]) * 1e9 / BYTES


def records() -> Iterator[Figure]:
    """Produce and consume records of 100 B and 1 KB over both listeners, and over Kafka's, in turn; a first round warms up."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports, process = stack.enter_context(_broker(directory))
        places = {"plain": ("PLAINTEXT", ports["PLAINTEXT"], process), "TLS": ("SSL", ports["SSL"], process)}
        if not kafka.missing():
            places["Kafka, TLS"] = ("SSL", *stack.enter_context(_kafka(directory)))
        for size_bytes in SIZES:
            peers = {name: _Peer(*place) for name, place in places.items()}
            for number in range(option("rounds", ROUNDS) + 1):
                for name, peer in peers.items():
                    topic = f"{name.split(',')[0]}-{size_bytes}-{number}"
                    peer.measure(directory, topic, size_bytes, is_kept=number > 0)
            for way in ("in", "out"):
                yield from _figures(peers, way, size_bytes)


def _figures(peers: dict[str, _Peer], way: str, size_bytes: int) -> Iterator[Figure]:
    plain, encrypted, theirs = peers["plain"], peers["TLS"], peers.get("Kafka, TLS")
    what = f"{way}, {size_bytes} B records"
    rate = None if theirs is None else 1000 / theirs.median(way, 0)
    cpu_s = None if theirs is None else theirs.median(way, 1)
    yield Figure(f"{what}, TLS, beside Kafka's", 1000 / encrypted.median(way, 0), "MB/s", rate)
    yield Figure(f"broker CPU per GB {what}, TLS, beside Kafka's", encrypted.median(way, 1), "s", cpu_s, is_upper=True)
    yield Figure(f"broker CPU per GB {what}, plain", plain.median(way, 1), "s")
    yield Figure("  more for TLS", encrypted.median(way, 1) - plain.median(way, 1), "s")


def _connect_often(port: int, context: ssl.SSLContext | None) -> None:
    for _ in range(HANDSHAKES):
        sock = socket.create_connection(("127.0.0.1", port))
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="localhost")
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)  # until the server has closed it: all that it does for a connection counts
        sock.close()


@contextmanager
def _bare_server(directory: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run a loop of accept, handshake and close around OpenSSL, nothing else; give its port and process."""
    command = [sys.executable, "-c", BARE, str(directory / "server.pem")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def handshakes() -> Iterator[Figure]:
    """Full handshakes, one after the other: with the broker, and with a bare server as the limit of OpenSSL here."""
    with tempfile.TemporaryDirectory() as name, _broker(Path(name)) as (ports, broker), _bare_server(Path(name)) as (port, bare):
        context = ssl.create_default_context(cafile=str(Path(name) / "ca.pem"))
        cases = {
            "TLS handshake with the broker (P-256)": (ports["SSL"], broker, context),
            "TLS handshake with a bare server": (port, bare, context),
            "plain connection to the broker": (ports["PLAINTEXT"], broker, None),
        }
        spent_ms: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for case, (own_port, process, own_context) in cases.items():
                before_s = _cpu_s(process)
                _connect_often(own_port, own_context)
                spent_ms.setdefault(case, []).append((_cpu_s(process) - before_s) / HANDSHAKES * 1e3)
        whole_ms, bare_ms, plain_ms = (statistics.median(spent_ms[case]) for case in cases)
        yield Figure("CPU per TLS handshake with a bare server", bare_ms, "ms")
        yield Figure("CPU per plain connection to the broker", plain_ms, "ms")
        yield Figure("CPU per TLS handshake with the broker (P-256)", whole_ms, "ms", 1.0, is_upper=True)
        yield Figure("  times as a bare server's", whole_ms / bare_ms, "x")


if __name__ == "__main__":
    main(records, handshakes)
