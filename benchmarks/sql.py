"""SQL: how long a statement takes to plan and compile, and what topologies T1 to T4 cost in SQL beside the same in Python.

Run: python -m benchmarks.sql [planning|queries|server|many] [--json]; `--many=N`: so many queries at once (500)

The queries run as in `benchmarks.streams_programs` (stores in memory, no log), by turns with the topology of the same work that
is written in Python. Each runs without the kernels and with them; each figure says which.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import logflume.streams as lf
from benchmarks._report import Figure, main
from benchmarks.streams_programs import JOBS, grouped, load_kernels, planned, us_per_record
from logflume.sql import Catalog, plan_query
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.parser import parse_statement
from logflume.streams import plan
from logflume.streams.kernels import kernel_loader

SOURCES = (
    "CREATE STREAM CLICKS (K STRING KEY, ID BIGINT, USER STRING, PAGE STRING, MS BIGINT, PRICE DOUBLE, OK BOOLEAN) "
    "WITH (KAFKA_TOPIC='clicks', VALUE_FORMAT='JSON')",
    "CREATE TABLE USERS (K STRING PRIMARY KEY, NAME STRING, COUNTRY STRING) WITH (KAFKA_TOPIC='users', VALUE_FORMAT='JSON')",
)
QUERIES = {
    "T1 filter, project": "CREATE STREAM T1 AS SELECT K, ID, USER, PAGE, PRICE * 1.2E0 AS P FROM CLICKS WHERE OK AND MS > 100",
    "T2 count, 10 k keys": "CREATE TABLE T2 AS SELECT K, COUNT(*) AS N FROM CLICKS GROUP BY K",
    "T3 tumbling count and sum, 10 k keys": (
        "CREATE TABLE T3 AS SELECT K, COUNT(*) AS N, SUM(PRICE) AS TOTAL FROM CLICKS "
        "WINDOW TUMBLING (SIZE 10 SECONDS, GRACE PERIOD 10 SECONDS) GROUP BY K"
    ),
    "T4 stream-table join, 100 k keys": (
        "CREATE STREAM T4 AS SELECT CLICKS.K, ID, USER, PAGE, MS, PRICE, OK, NAME, COUNTRY "
        "FROM CLICKS JOIN USERS ON CLICKS.K = USERS.K"
    ),
}
SERVED = (
    "CREATE STREAM S (K STRING KEY, V INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
    "CREATE STREAM ALONE (K STRING KEY, V INT) WITH (KAFKA_TOPIC='alone', PARTITIONS=1, VALUE_FORMAT='JSON');",
    "CREATE TABLE T AS SELECT K, COUNT(*) AS N FROM S GROUP BY K;",
)
INSERTED, ASKED, MADE, PUSHED, REPEATED, CONNECTIONS = 20_000, 1_000, 9, 9, 9, 32
UNDER_WAY = 32
PULLED, PULLING = 20_000, 8
ANSWER_MAX_S = 60.0
MANY, SETTLED_S, IDLE_S = 500, 5.0, 10.0
TURNS = 9


def catalog() -> Catalog:
    """Return the catalog with the sources."""
    made = Catalog()
    for text in SOURCES:
        made = apply_definition(parse_statement(text), Context(made))
    return made


def counted(app: lf.App) -> Any:
    """T2 with rows as results, as SQL has them."""
    return grouped(app).aggregate(n=lf.count())


def measure_queries() -> Iterator[Figure]:
    """CPU a record of each query, and how many times that of the same topology in Python, without the kernels and with them."""
    sources = catalog()
    for has_kernels in (False, True):
        if has_kernels:
            load_kernels()
        with nullcontext() if has_kernels else kernel_loader().held_back():
            for name, text in QUERIES.items():
                job = JOBS[name[:2].lower()]
                rounds, by_sql = job.rounds(), plan(replace(plan_query(text, sources), name="benchmark"))
                by_python = planned(counted if name.startswith("T2") else job.build)
                turns = [(us_per_record(by_sql, rounds), us_per_record(by_python, rounds)) for _ in range(TURNS)]
                sql_us, python_us = map(min, zip(*turns, strict=True))
                label = f"{name} ({'with' if has_kernels else 'without'} kernels)"
                yield Figure(label, sql_us, "us/record")
                yield Figure(f"{label}, beside Python", sql_us / python_us, "times", 1.1, is_upper=True)


def measure_planning() -> Iterator[Figure]:
    """Milliseconds from text to topology, and on to generated code; the first statement builds the parser."""
    started = time.perf_counter()
    parse_statement(SOURCES[0])
    yield Figure("first parse of a process", (time.perf_counter() - started) * 1e3, "ms")
    sources = catalog()
    text = QUERIES["T3 tumbling count and sum, 10 k keys"]
    for name, step in (
        ("parse", lambda: parse_statement(text)),
        ("text to topology", lambda: plan_query(text, sources)),
        ("text to generated code", lambda: plan(plan_query(text, sources))),
    ):
        started = time.perf_counter()
        for _ in range(20):
            step()
        yield Figure(f"{name}, a windowed aggregate", (time.perf_counter() - started) / 20 * 1e3, "ms")


@contextmanager
def started(*argv: str) -> Iterator[tuple[str, int]]:
    """Run a command of the package; yield the first line that it prints, and its process id."""
    child = subprocess.Popen([sys.executable, "-m", *argv], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline(), child.pid
    finally:
        child.terminate()
        child.wait(30)


class Client:
    """One connection by HTTP/1.1; of the standard library, for a heavier one would be half of what is measured."""

    def __init__(self, address: str) -> None:
        self.address = address.removeprefix("http://")
        self._connection = HTTPConnection(self.address, timeout=ANSWER_MAX_S)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, content: object) -> bytes:
        """Return the answer to a request; `content` goes as JSON if it is no bytes."""
        self._connection.request("POST", path, content if isinstance(content, bytes) else json.dumps(content))
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    def first_lines(self, path: str, content: object, count: int) -> list[bytes]:
        """Return the first lines of an answer that does not end; the connection is closed."""
        self._connection.request("POST", path, json.dumps(content))
        answer = self._connection.getresponse()
        lines = [answer.readline() for _ in range(count)]
        self._connection.close()
        return lines


@contextmanager
def served() -> Iterator[tuple[str, int, int]]:
    """Run a broker and a SQL server beside it; yield the server's address, its process id, and the broker's."""
    with tempfile.TemporaryDirectory(prefix="sql-server-") as folder:
        broker = ("logflume.log.server", "--data", f"{folder}/log", "--listen", "127.0.0.1:0")
        with started(*broker) as (line, broker_pid):
            where = line.split(" on ")[1].split(",")[0].strip()
            server = ("logflume", "sql", "serve", "--bootstrap", where, "--listen", "127.0.0.1:0", "--state-dir", f"{folder}/sql")
            with started(*server) as (said, pid):
                yield said.split()[1], pid, broker_pid


def measure_server() -> Iterator[Figure]:
    """Requests by HTTP/1.1 to a server in a process of its own that runs its query itself; one connection, one by one."""
    with served() as (address, pid, _):
        yield from _requests(address, partial(_cpu_s, pid))


def measure_many() -> Iterator[Figure]:
    """What queries at once take while nothing comes: the making, the server's memory, its CPU and the broker's."""
    count = next((int(each.partition("=")[2]) for each in sys.argv if each.startswith("--many=")), MANY)
    with served() as (address, server, broker):
        client = Client(address)
        client.post("/ksql", {"ksql": SERVED[0]})
        before_kb, before_s = _resident_kb(server), _cpu_s(server)
        made = [SERVED[1].replace("TABLE T ", f"TABLE T{n} ") for n in range(count)]
        took_s = _timed(lambda: _execute(client, made))
        yield Figure(f"{count} queries made, each waited for", took_s, "s")
        yield Figure(f"{count} queries made, CPU of the server", _cpu_s(server) - before_s, "CPU s")
        time.sleep(SETTLED_S)
        yield Figure(f"memory of {count} queries in the server", (_resident_kb(server) - before_kb) / 1024, "MB")
        cpu = {name: _cpu_s(pid) for name, pid in (("server", server), ("broker", broker))}
        begun = time.perf_counter()
        time.sleep(IDLE_S)
        idle_s = time.perf_counter() - begun
        for name, pid in (("server", server), ("broker", broker)):
            yield Figure(f"CPU of the {name}, {count} queries idle", (_cpu_s(pid) - cpu[name]) / idle_s * 100, "% of a core")


def _resident_kb(pid: int) -> int:
    return int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])


def _median_ms(times_s: list[float]) -> float:
    return sorted(times_s)[len(times_s) // 2] * 1e3


def _cpu_s(pid: int) -> float:
    """Return what CPU a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _requests(address: str, cpu_s: Callable[[], float]) -> Iterator[Figure]:
    client = Client(address)
    took_s = _timed(lambda: client.post("/ksql", {"ksql": SERVED[0]}))
    yield Figure("CREATE STREAM, first statement of the server", took_s * 1e3, "ms")
    took_s = _timed(lambda: client.post("/ksql", {"ksql": SERVED[1]}))
    yield Figure("CREATE TABLE ... AS, the first of the server", took_s * 1e3, "ms", 50, is_upper=True)
    made = [SERVED[1].replace("TABLE T ", f"TABLE T{n} ") for n in range(MADE)]
    cpu_before_s = cpu_s()
    took = [_timed(partial(client.post, "/ksql", {"ksql": text})) for text in made]
    yield Figure(f"CREATE TABLE ... AS, median of {MADE}", _median_ms(took), "ms", 50, is_upper=True)
    yield Figure("CREATE TABLE ... AS, CPU of the server", (cpu_s() - cpu_before_s) / MADE * 1e3, "CPU ms")
    dropped = "".join(f"DROP TABLE T{n} DELETE TOPIC;" for n in range(MADE))
    client.post("/ksql", {"ksql": dropped})
    yield from _inserts(client, address)
    yield from _pulls(client, cpu_s)
    took = []
    for _ in range(PUSHED):
        one = Client(address)
        query = {"sql": "SELECT K FROM S EMIT CHANGES;"}
        took.append(_timed(partial(one.first_lines, "/query-stream", query, 2)))
    yield Figure("first row of a push query, the first of the server", took[0] * 1e3, "ms", 100, is_upper=True)
    yield Figure(f"first row of a push query, median of {PUSHED}", _median_ms(took), "ms", 100, is_upper=True)


def _inserts(client: Client, address: str) -> Iterator[Figure]:
    yield from _rows_into("ALONE", "nothing reads them", client, address)
    yield from _rows_into("S", "a query counts them", client, address)
    yield Figure("fdatasync of 100 bytes, median: what each INSERT waits for at least", _sync_ms(), "ms")


def _rows_into(name: str, beside: str, client: Client, address: str) -> Iterator[Figure]:
    lines = [b'{"target": "%s"}' % name.encode(), *(b'{"K": "k%d", "V": %d}' % (n % 1000, n) for n in range(INSERTED))]
    body, took = b"\n".join(lines) + b"\n", []
    for _ in range(REPEATED):
        begun = time.perf_counter()
        told = client.post("/inserts-stream", body)
        took.append(time.perf_counter() - begun)
        assert told.count(b'"ok"') == INSERTED, told[-200:]
    rows_per_s = INSERTED / _median_ms(took) * 1e3
    yield Figure(f"/inserts-stream, median of {REPEATED} requests of {INSERTED} rows, {beside}", rows_per_s, "rows/s", 100_000)
    texts = [f"INSERT INTO {name} VALUES ('k{n}', {n});" for n in range(ASKED)]
    took_s = _timed(lambda: _execute(client, texts))
    yield Figure(f"INSERT VALUES, each waited for, {beside}", ASKED / took_s, "1/s")
    took_s = _timed(lambda: _pipelined(client.address, texts, UNDER_WAY))
    yield Figure(f"INSERT VALUES, one a request, {UNDER_WAY} under way by one connection, {beside}", ASKED / took_s, "1/s", 2_000)
    clients = [Client(address) for _ in range(CONNECTIONS)]
    shares = [texts[n::CONNECTIONS] for n in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        took_s = _timed(lambda: list(pool.map(_execute, clients, shares)))
    yield Figure(f"INSERT VALUES, one a request by {CONNECTIONS} connections, {beside}", ASKED / took_s, "1/s", 2_000)
    scripts = ["".join(f"INSERT INTO {name} VALUES ('k{n}', {n + k});" for n in range(100)) for k in range(20)]
    took_s = _timed(lambda: _execute(client, scripts))
    yield Figure(f"INSERT VALUES, 100 a request, {beside}", 2_000 / took_s, "1/s", 2_000)


def _execute(client: Client, texts: list[str]) -> None:
    for text in texts:
        client.post("/ksql", {"ksql": text})


def _pipelined(address: str, texts: list[str], under_way: int) -> None:
    """Execute statements by one connection, which sends so many ahead of their answers."""
    host, port = address.split(":")
    bodies = [json.dumps({"ksql": text}) for text in texts]
    requests = [
        f"POST /ksql HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode() for body in bodies
    ]
    with socket.create_connection((host, int(port)), ANSWER_MAX_S) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent, answers = 0, b""
        while (answered := answers.count(b"\r\n\r\n[]")) < len(requests):
            opened.sendall(b"".join(requests[sent : answered + under_way]))
            sent = min(answered + under_way, len(requests))
            answers += opened.recv(1 << 16)
            assert answers.count(b'"error_code"') == 0, answers


def _sync_ms() -> float:
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        took = []
        for _ in range(100):
            file.write(b"x" * 100)
            took.append(_timed(lambda: os.fdatasync(file.fileno())))
    return _median_ms(took)


def _pull_all(address: str, connections: int, count: int) -> None:
    """Ask for keys over so many connections, each with one request under way; a library would be the slower half of it."""
    host, port = address.split(":")
    texts = [json.dumps({"ksql": f"SELECT * FROM T WHERE K = 'k{n}';"}) for n in range(1000)]
    head = f"POST /query HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: "
    requests = itertools.islice(itertools.cycle([f"{head}{len(text)}\r\n\r\n{text}".encode() for text in texts]), count)
    answered = 0
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for request in itertools.islice(requests, connections):
            opened = stack.enter_context(socket.create_connection((host, int(port))))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(opened, selectors.EVENT_READ, opened)
            opened.sendall(request)
        while answered < count:
            ready = selector.select(ANSWER_MAX_S)
            assert ready, f"the server has answered {answered} of {count} requests, and none for {ANSWER_MAX_S:g} s"
            for key, _ in ready:
                answer = key.data.recv(1 << 16)
                assert answer.startswith(b"HTTP/1.1 200"), answer
                assert answer.endswith(b"]\n"), answer
                answered += 1
                key.data.sendall(next(requests, b""))


def _pulls(client: Client, cpu_s: Callable[[], float]) -> Iterator[Figure]:
    client.post("/query", {"ksql": "SELECT * FROM T;"})
    latencies = []
    for n in range(ASKED):
        begun = time.perf_counter()
        answer = client.post("/query", {"ksql": f"SELECT * FROM T WHERE K = 'k{n % 1000}';"})
        latencies.append((time.perf_counter() - begun) * 1e3)
        assert len(json.loads(answer)) == 2, answer
    latencies.sort()
    yield Figure("pull by key, p50", latencies[ASKED // 2], "ms", 1, is_upper=True)
    yield Figure("pull by key, p99", latencies[ASKED * 99 // 100], "ms", 3, is_upper=True)
    yield Figure("pull by key, one connection, each waited for", ASKED / sum(latencies) * 1e3, "1/s")
    for connections in (1, PULLING):
        cpu_before_s = cpu_s()
        took_s = _timed(partial(_pull_all, client.address, connections, PULLED))
        shown = f"pull by key, {connections} connection{'s' if connections > 1 else ''} kept busy"
        yield Figure(shown, PULLED / took_s, "1/s")
        yield Figure(f"{shown}, by the server's CPU", PULLED / (cpu_s() - cpu_before_s), "1/CPU s", 5_000)
    took = []
    for first in range(REPEATED):
        keys = ", ".join(f"'k{(first + n) % 1000}'" for n in range(1000))
        begun = time.perf_counter()
        found = json.loads(client.post("/query", {"ksql": f"SELECT * FROM T WHERE K IN ({keys});"}))
        took.append(time.perf_counter() - begun)
        assert len(found) == 1001, found[:3]
    yield Figure("pull of 1000 keys at once, the first", 1000 / took[0], "keys/s")
    yield Figure(f"pull of 1000 keys at once, median of {REPEATED}", 1e6 / _median_ms(took), "keys/s", 20_000)


if __name__ == "__main__":
    main(measure_planning, measure_queries, measure_server, measure_many)
