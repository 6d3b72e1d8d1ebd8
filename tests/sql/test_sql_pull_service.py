"""State between processes: who can ask, what is refused, and what workers that are gone leave behind."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from logflume.log import connect, connect_as_owner, local_data
from logflume.log.interfaces import Log
from logflume.log.server import start_embedded
from logflume.log.server.addresses import parse_address
from logflume.sql import SqlEngine
from logflume.sql.places import MAX_SOCKET_PATH_BYTES, Role, socket_stem
from logflume.sql.pull_service import BODY_BYTES_MAX, PullService
from logflume.sql.table_state import TablePage, TableRead
from logflume.sql.workers import Workers, has_worker
from tests.streams.running import until

SERVICE = "logflume-sql"
SETUP = """
CREATE STREAM s (id INT KEY, v DOUBLE) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
INSERT INTO s VALUES (1, 7);
CREATE TABLE t AS SELECT id, MAX(v) AS m FROM s GROUP BY id;
"""
KEY = (1).to_bytes(4, "big")


@pytest.fixture
def service(log: Log, tmp_path: Path) -> Iterator[PullService]:
    with SqlEngine(log, tmp_path / "sql") as engine:
        list(engine.execute(SETUP))
        with PullService(engine, log) as opened:
            until(lambda: list(next(iter(engine.execute("SELECT * FROM t WHERE id = 1;"))).rows))  # type: ignore[union-attr]
            yield opened


def post(service: PullService, body: bytes) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.path)), timeout=20) as client:
        return client.post("http://worker/rows", content=body)


def listening() -> set[tuple[str, int]]:
    """Return the TCP addresses at which this process listens."""
    return {each.laddr for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN}


@pytest.fixture
def before() -> set[tuple[str, int]]:
    """What other tests of this process have left listening."""
    return listening()


def test_a_worker_answers_its_own_user_only(before: set[tuple[str, int]], service: PullService, log: Log) -> None:
    answer = post(service, msgspec.msgpack.encode(TableRead("CTAS_T_0", (0, 1), (KEY, b"no such key"))))
    page = msgspec.msgpack.decode(answer.content, type=TablePage)
    assert page.partitions == (0,)
    assert [row[1:] for row in page.rows] == [[None, None, 1, 7.0]]
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o600
    data = local_data(log)
    assert data is not None
    assert stat.S_IMODE(data.directory.stat().st_mode) == 0o700
    assert listening() <= before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"7", 400),
        (b"\xff", 400),
        (b"\x91" * 900_000, 400),
        (msgspec.msgpack.encode({"query_id": 1, "partitions": [0]}), 400),
        (msgspec.msgpack.encode({"query_id": "CTAS_T_0", "partitions": ["x"]}), 400),
        (b" " * (BODY_BYTES_MAX + 1), 413),
    ],
)
def test_what_is_no_read_is_refused(service: PullService, caplog: pytest.LogCaptureFixture, body: bytes, status: int) -> None:
    answer = post(service, body)
    assert answer.status_code == status
    assert msgspec.msgpack.decode(answer.content)["error"]
    assert not caplog.records


@pytest.mark.parametrize("read", [TableRead("CTAS_T_0", (7,)), TableRead("CTAS_X_0", (0,)), TableRead("CTAS_T_0", ())])
def test_of_what_is_not_here_nothing_is_said(service: PullService, read: TableRead) -> None:
    answer = post(service, msgspec.msgpack.encode(read))
    assert msgspec.msgpack.decode(answer.content, type=TablePage) == TablePage()


def test_a_worker_that_is_gone_is_not_asked_and_its_socket_goes(log: Log) -> None:
    stem = socket_stem(log, SERVICE)
    stem.parent.mkdir(exist_ok=True)
    left = Path(f"{stem}-1.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(left))
    Path(f"{stem}-2.sock").write_text("no socket")
    workers = Workers(log, SERVICE)
    assert [read(TableRead("CTAS_T_0", (0,))) for read in workers.readers()] == [TablePage()]
    assert not left.exists()
    assert not has_worker(log, SERVICE)
    assert workers.readers() == []
    assert workers.status() == {}


def test_workers_of_another_service_are_not_asked(service: PullService, log: Log) -> None:
    assert has_worker(log, SERVICE)
    assert not has_worker(log, "logflume-other")


def test_who_runs_queries_for_want_of_a_worker_is_none(log: Log, tmp_path: Path) -> None:
    with SqlEngine(log, tmp_path / "sql") as engine, PullService(engine, log, role=Role.GUEST):
        assert not has_worker(log, SERVICE)
        assert not engine.give_way()
        with PullService(engine, log):
            assert engine.give_way()
            assert not engine.runs_queries


def test_a_long_data_directory_has_its_socket_among_temporary_files(tmp_path: Path) -> None:
    with connect(tmp_path / ("x" * 100)) as log, SqlEngine(log, tmp_path / "sql") as engine, PullService(engine, log) as service:
        assert len(bytes(service.path)) <= MAX_SOCKET_PATH_BYTES
        assert has_worker(log, SERVICE)
        assert service.path.name.endswith(f"-{os.getpid()}.sock")
    assert not service.path.exists()


def test_an_address_leads_to_the_owner_s_socket_where_the_data_is_this_user_s(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path / "log"), listen=[parse_address("127.0.0.1:0")]) as broker:
        address = str(broker.addresses[0])
        with connect_as_owner(address) as owner, connect(address) as stranger:
            assert owner.where.startswith("unix:")
            assert socket_stem(owner, SERVICE) == socket_stem(stranger, SERVICE)
            owner.admin().create_topic("_logflume-x")
            with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
                stranger.admin().create_topic("_logflume-y")


def test_a_directory_of_another_cluster_under_the_same_name_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        start_embedded(str(tmp_path / "one"), listen=[parse_address("127.0.0.1:0")]) as one,
        connect(tmp_path / "two") as two,
        connect(str(one.addresses[0])) as log,
    ):
        assert local_data(log) is not None
        told = two.admin().request("DescribeLogDirs", topics=[])
        real = log.admin().request

        def request(name: str, **fields: object) -> object:
            return told if name == "DescribeLogDirs" else real(name, **fields)

        monkeypatch.setattr(log.admin(), "request", request)
        assert local_data(log) is None
