"""What TLS costs the broker: its CPU a gigabyte of records in and out, and a handshake, beside a plain listener in the same run.

The listeners are taken in turn, so that their ratios hold on a noisy machine. Run: python -m benchmarks.tls
"""

from __future__ import annotations

import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from logflume.log.security import issue, make_authority

from ._report import Figure, main

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
    now = datetime.now(UTC)
    authority = make_authority("Benchmark", now=now)
    server = issue(authority, "localhost", now=now, hosts=["localhost", "127.0.0.1"], is_server=True)
    (directory / "ca.pem").write_bytes(authority.certificate_pem)
    (directory / "server.pem").write_bytes(server.key_pem + server.certificate_pem)
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


def records() -> Iterator[Figure]:
    """Produce and consume records of 100 B and 1 KB over both listeners in turn."""
    with tempfile.TemporaryDirectory() as name, _broker(Path(name)) as (ports, process):
        for size_bytes in SIZES:
            costs: dict[tuple[str, str], list[float]] = {}
            for number in range(ROUNDS):
                for protocol, port in ports.items():
                    settings, topic = _settings(protocol, port, Path(name)), f"{protocol}-{size_bytes}-{number}"
                    before_s = _cpu_s(process)
                    _produce(settings, topic, size_bytes)
                    between_s = _cpu_s(process)
                    _consume(settings, topic, BYTES // size_bytes)
                    costs.setdefault((protocol, "in"), []).append((between_s - before_s) * 1e9 / BYTES)
                    costs.setdefault((protocol, "out"), []).append((_cpu_s(process) - between_s) * 1e9 / BYTES)
            for way in ("in", "out"):
                plain, encrypted = (statistics.median(costs[protocol, way]) for protocol in ports)
                yield Figure(f"broker CPU per GB {way}, {size_bytes} B records, plain", plain, "s")
                yield Figure(f"broker CPU per GB {way}, {size_bytes} B records, TLS", encrypted, "s")
                yield Figure("  more for TLS", encrypted - plain, "s")


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
