"""/metrics, /healthz, /readyz; logs as JSON; a stop that ends in time."""

import http.client
import io
import json
import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from logflume.log.errors import InvalidInput
from logflume.log.histogram import BOUNDS_S, Histogram
from logflume.log.logs import JsonFormatter
from logflume.log.protocol import frames, messages
from logflume.log.server import read_config_file

from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str, *, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def samples(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_what_happened(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(str(tmp_path), [f"logflume.http.listener=127.0.0.1:{port}", "max.connections.per.ip=6"])
    producer = Producer({"bootstrap.servers": server.address})
    for index in range(10):
        producer.produce("orders", str(index), partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    consumer.close()
    found = samples(port)
    assert found["logflume_request_duration_seconds_count", (("api", "Produce"),)] >= 1
    assert found["logflume_request_duration_seconds_bucket", (("api", "Produce"), ("le", "+Inf"))] >= 1
    assert found["logflume_topic_records_appended_total", (("topic", "orders"),)] == 10
    assert found["logflume_topic_size_bytes", (("topic", "orders"),)] > 0
    assert found["logflume_group_lag_records", (("group", "readers"), ("topic", "orders"))] == 6
    assert found["logflume_flush_duration_seconds_count", ()] >= 1
    assert found["logflume_network_received_bytes_total", ()] > 100
    assert found["logflume_network_sent_bytes_total", ()] > 100
    assert found["logflume_disk_is_low", ()] == 0
    assert found["process_resident_memory_bytes", ()] > 1_000_000
    with Wire(server.port) as wire:
        wire.sock.sendall(b"\0\0\0\1nonsense")
        assert wire.is_closed_by_broker()
    assert samples(port)["logflume_requests_failed_total", ()] >= 1
    assert server.stop() == 0


def test_every_metric_has_a_help_text_and_a_unit_where_it_measures(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(str(tmp_path), [f"logflume.http.listener=127.0.0.1:{port}"])
    families = list(text_string_to_metric_families(get(port, "/metrics")[1]))
    own = [family for family in families if family.name.startswith("logflume_")]
    assert len(own) > 20
    for family in own:
        assert family.documentation.endswith("."), family.name
        measures = any(word in family.documentation.lower() for word in ("time", "age", "size of", "free space", "bytes "))
        assert not measures or family.name.endswith(("_seconds", "_bytes")), family.name
    assert server.stop() == 0


def test_health_and_readiness(tmp_path: Path) -> None:
    port = free_port()
    configs = [f"logflume.http.listener=127.0.0.1:{port}"]
    server = ServerProcess(str(tmp_path), configs)
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz?verbose") == (200, "ready\n")
    assert get(port, "/healthz", method="HEAD") == (200, "")
    assert get(port, "/healthz", method="POST")[0] == 405
    status, text = get(port, "/secret")
    assert (status, "/readyz" in text) == (404, True)
    for nonsense in (b"\r\n\r\n", b"GET\r\n\r\n", b"x" * 20_000):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(nonsense)
            try:
                answer = sock.recv(1000)
            except ConnectionResetError:
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert server.stop() == 0
    full = ServerProcess(str(tmp_path), [*configs, f"logflume.disk.min.free.bytes={2**62}"])
    status, text = get(port, "/readyz")
    assert status == 503
    assert "the disk is almost full" in text
    assert get(port, "/healthz")[0] == 200
    assert full.stop() == 0


def test_a_busy_http_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
        command += ["--config", f"logflume.http.listener=127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "choose another logflume.http.listener" in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_are_json_lines_if_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    command += ["--log-format", "json", "--config", "logflume.flush=os"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    process.terminate()
    _, logged = process.communicate(timeout=30)
    lines = [json.loads(line) for line in logged.splitlines()]
    assert lines
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(line["level"] == "warning" and "a power cut can lose them" in line["message"] for line in lines)
    assert any(line["message"].startswith("stopped in") for line in lines)


def test_a_json_line_holds_fields_and_the_exception() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise InvalidInput("no\nlines")
    except InvalidInput:
        logger.exception("failed on %s", "ö", extra={"partition": 3})
    (line,) = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert (fields["message"], fields["partition"], fields["level"]) == ("failed on ö", 3, "error")
    assert "InvalidInput" in fields["exception"]


def test_a_stop_answers_what_was_asked_and_does_not_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["logflume.shutdown.timeout.ms=1000"])
    with Wire(server.port) as wire, Wire(server.port) as waiting, socket.create_connection(("127.0.0.1", server.port)) as lazy:
        wire.call(create_topic_request("t"), 7)
        for _ in range(20):
            wire.call(produce_request("t", batch(bytes(900_000))), 9)
        waiting.send(fetch_request("t", {0: 20}, max_wait_ms=60_000), 12)
        request = fetch_request("t", {0: 0}, max_bytes=50_000_000, partition_max_bytes=50_000_000)
        lazy.sendall(b"".join(frames.request_frame(request, 12, 1, "lazy")) * 5)
        wire.call(messages.ApiVersionsRequest(), 2)
        codes: list[int] = []
        stopping = threading.Thread(target=lambda: codes.append(server.stop()))
        stopping.start()
        _, response = waiting.receive(messages.FetchRequest, 12)
        assert response.responses[0].partitions[0].error_code == 0
        stopping.join(30)
        assert codes == [0]


def test_a_histogram_counts_by_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.0002, 99.0):
        histogram.observe(seconds)
    cumulative = dict(histogram.cumulative())
    assert (cumulative["0.0001"], cumulative["0.00025"], cumulative["10.0"], cumulative["+Inf"]) == (1, 2, 2, 3)
    assert len(cumulative) == len(BOUNDS_S) + 1
    assert histogram.total_s == pytest.approx(99.0003)


def test_a_config_file_names_the_http_port(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[logflume.http]\nlistener = "127.0.0.1:0"\n')
    assert read_config_file(path) == {"logflume.http.listener": "127.0.0.1:0"}
