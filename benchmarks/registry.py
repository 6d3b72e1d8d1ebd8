"""The schema registry: ready with 50,000 schemas, all subjects listed, lookups by id a second and their slowest hundredth.

python -m benchmarks.registry [--json]

A broker and a registry in processes of their own; the lookups come from this one, over 8 connections that are kept open.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from logflume.log import connect

from ._report import Figure, main

SCHEMAS = 50_000
CONNECTIONS = 8
LOOKUP_S = 5.0


TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


@contextmanager
def process(*argv: str) -> Iterator[tuple[str, int]]:
    """Run a Python module; give the first line that it prints, and its process id."""
    child = subprocess.Popen([sys.executable, "-m", *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline(), child.pid
    finally:
        child.terminate()
        child.wait(30)


def fill(address: str) -> None:
    """Write 50,000 subjects of one version each, as a registry writes them."""
    with connect(address) as log:
        log.admin().create_topic("_schemas", configs={"cleanup.policy": "compact"})
        producer = log.producer()
        for n in range(1, SCHEMAS + 1):
            fields = [{"name": f"field_{n}_{i}", "type": "string"} for i in range(6)]
            schema = json.dumps({"type": "record", "name": f"Record{n}", "fields": fields}, separators=(",", ":"))
            key = {"keytype": "SCHEMA", "subject": f"subject-{n}-value", "version": 1, "magic": 1}
            value = {"subject": f"subject-{n}-value", "version": 1, "id": n, "schema": schema, "deleted": False}
            producer.send("_schemas", json.dumps(value).encode(), key=json.dumps(key, separators=(",", ":")).encode())
        producer.flush()
        producer.close()


def timed_get(url: str) -> tuple[float, bytes]:
    started = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
    return time.perf_counter() - started, body


async def lookups(host: str, port: int, requests: list[bytes]) -> list[float]:
    """Send requests on all connections for a while; return how long each took."""
    durations: list[float] = []
    deadline = time.perf_counter() + LOOKUP_S

    async def one(offset: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        n = offset
        while (started := time.perf_counter()) < deadline:
            writer.write(requests[n % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            assert head.startswith(b"HTTP/1.1 200"), head
            durations.append(time.perf_counter() - started)
            n += 7919
        writer.close()

    await asyncio.gather(*(one(n * 1000) for n in range(CONNECTIONS)))
    return durations


def registry() -> Iterable[Figure]:
    """Fill a topic, start a registry over it, then ask it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        process("logflume.log.server", "--data", folder, "--listen", "127.0.0.1:0") as line,
    ):
        address = f"127.0.0.1:{line[0].split('127.0.0.1:')[1].split(',')[0]}"
        fill(address)
        with process("logflume", "registry", "serve", "--bootstrap", address, "--listen", "127.0.0.1:0", "--topic", "empty"):
            pass  # whatever is loaded for the first time is in the page cache from here on
        started = time.perf_counter()
        with process("logflume", "registry", "serve", "--bootstrap", address, "--listen", "127.0.0.1:0") as line:
            ready_s = time.perf_counter() - started
            url, pid = line[0].split()[1], line[1]
            yield Figure("CPU until then", cpu_s(pid), "s", 1.0, is_upper=True)
            host, port = url.removeprefix("http://").split(":")
            first_s, body = timed_get(f"{url}/subjects")
            again_s = min(timed_get(f"{url}/subjects")[0] for _ in range(5))
            assert len(json.loads(body)) == SCHEMAS
            yield Figure(f"ready after start with {SCHEMAS:,} schemas", ready_s, "s", 1.0, is_upper=True)
            yield Figure("GET /subjects, the first time", first_s * 1000, "ms", 100, is_upper=True)
            yield Figure("GET /subjects, again", again_s * 1000, "ms", 100, is_upper=True)
            gets = [f"GET /schemas/ids/{n} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for n in range(1, SCHEMAS + 1)]
            yield from _rates("GET /schemas/ids/ID", host, int(port), gets, pid)
            posts = [_post(n) for n in range(1, 2001)]
            yield from _rates("POST /subjects/SUBJECT (which version is this?)", host, int(port), posts, pid)


def _post(n: int) -> bytes:
    fields = [{"name": f"field_{n}_{i}", "type": "string"} for i in range(6)]
    body = json.dumps({"schema": json.dumps({"type": "record", "name": f"Record{n}", "fields": fields})}).encode()
    head = f"POST /subjects/subject-{n}-value HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _rates(name: str, host: str, port: int, requests: list[bytes], pid: int) -> Iterable[Figure]:
    before_s = cpu_s(pid)
    durations = sorted(asyncio.run(lookups(host, port, requests)))
    used_s = cpu_s(pid) - before_s
    yield Figure(f"{name}: CPU of the registry", used_s / len(durations) * 1e6, "us", 200, is_upper=True)
    yield Figure(f"{name}: requests", len(durations) / LOOKUP_S, "/s", 5_000)
    yield Figure(f"{name}: 99 of 100 within", durations[int(len(durations) * 0.99)] * 1000, "ms", 5, is_upper=True)


if __name__ == "__main__":
    main(registry)
