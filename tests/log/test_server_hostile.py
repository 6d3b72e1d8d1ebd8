"""Clients that mean harm: slow ones, ones that never read, thousands of them, ones that lie about sizes."""

import contextlib
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from logflume.log.broker.settings.lookup import BrokerConfig, parse_overrides
from logflume.log.protocol import ErrorCode, KafkaError, frames, messages
from logflume.log.server import start_embedded
from logflume.log.server.admission import Admission
from logflume.log.server.budget import MemoryBudget

from ._embedded import Calls
from ._server_process import ServerProcess
from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request

MEGABYTE = 1_000_000


@contextlib.contextmanager
def serving(path: Path, *configs: str) -> Iterator[ServerProcess]:
    server = ServerProcess(str(path), configs)
    try:
        yield server
        with Wire(server.port) as wire:
            assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0
    finally:
        code = server.stop()
    assert code == 0


def rss_of(server: ServerProcess) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def frame_of(message: object, version: int) -> bytes:
    return b"".join(frames.request_frame(message, version, 1, "hostile"))


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true in time"
        time.sleep(0.02)


def test_who_sends_a_request_too_slowly_is_cut_off_and_who_is_quiet_between_requests_is_not(tmp_path: Path) -> None:
    with serving(tmp_path, "logflume.request.receive.timeout.ms=400") as server, Wire(server.port) as quiet:
        assert quiet.call(messages.ApiVersionsRequest(), 2).error_code == 0
        with Wire(server.port) as slow:
            slow.sock.sendall(struct.pack(">i", 1_000_000))

            def trickle() -> bool:
                slow.sock.settimeout(0.05)
                try:
                    slow.sock.sendall(b"x")
                    return slow.sock.recv(1) == b""
                except TimeoutError:
                    return False
                except OSError:
                    return True

            wait_until(trickle)
        assert quiet.call(messages.ApiVersionsRequest(), 2).error_code == 0


def test_who_never_reads_is_cut_off_although_it_goes_on_sending(tmp_path: Path) -> None:
    with serving(tmp_path, "logflume.response.send.timeout.ms=400") as server:
        with Wire(server.port) as wire:
            for index in range(3):
                wire.call(create_topic_request(f"t{index}", 300), 7)
        with socket.create_connection(("127.0.0.1", server.port)) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.settimeout(0.05)
            request = frame_of(messages.MetadataRequest(topics=None), 12)

            def is_cut_off() -> bool:
                try:
                    lazy.sendall(request)
                except TimeoutError:
                    return False
                except OSError:
                    return True
                return False

            wait_until(is_cut_off)


@pytest.mark.slow
def test_a_flood_of_requests_in_one_buffer_is_answered_in_bounded_memory(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with Wire(server.port) as wire:
            wire.call(create_topic_request("wide", 800), 7)
            wire.call(create_topic_request("t"), 7)
        before = rss_of(server)
        with socket.create_connection(("127.0.0.1", server.port)) as flood:
            flood.settimeout(2)
            # The large request makes the receive buffer large; then it holds tens of thousands of small ones.
            flood.sendall(frame_of(produce_request("t", batch(bytes(900_000))), 9))
            with contextlib.suppress(TimeoutError):
                flood.sendall(frame_of(messages.MetadataRequest(topics=None), 12) * 100_000)
            with Wire(server.port) as wire:
                assert wire.call(messages.MetadataRequest(topics=[]), 12).cluster_id
            assert rss_of(server) - before < 60 * MEGABYTE
            # What was held back is answered once the client reads.
            flood.settimeout(20)
            received = 0
            while received < 20 * MEGABYTE:
                received += len(flood.recv(1 << 20))


@pytest.mark.slow
def test_answers_that_wait_for_an_earlier_one_are_bounded(tmp_path: Path) -> None:
    request = messages.DescribeConfigsRequest
    broker = request.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    long_answer = request(resources=[broker] * 10, include_synonyms=True, include_documentation=True)
    with serving(tmp_path) as server, Wire(server.port) as wire:
        wire.call(create_topic_request("t"), 7)
        wire.send(long_answer, 4)
        size_bytes = len(wire.receive_frame())
        assert size_bytes > 400_000
        before = rss_of(server)
        wire.send(fetch_request("t", {0: 0}, max_wait_ms=2_000), 12)
        for _ in range(90):
            wire.send(long_answer, 4)
        wire.receive(messages.FetchRequest, 12)
        assert rss_of(server) - before < 36 * MEGABYTE
        for _ in range(90):
            assert len(wire.receive_frame()) == size_bytes


def test_requests_share_a_small_budget_and_all_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path, "queued.max.request.bytes=1000000") as server:
        with Wire(server.port) as wire:
            wire.call(create_topic_request("t"), 7)
        before = rss_of(server)
        wires = [Wire(server.port) for _ in range(24)]
        raw = frame_of(produce_request("t", batch(bytes(900_000))), 9)
        for wire in wires:  # every one begins before any ends
            wire.sock.sendall(raw[:30_000])
        errors: list[int] = []

        def finish(wire: Wire) -> None:
            wire.sock.settimeout(60)
            wire.sock.sendall(raw[30_000:])
            _, response = wire.receive(messages.ProduceRequest, 9)
            errors.append(response.responses[0].partition_responses[0].error_code)
            wire.sock.close()

        threads = [threading.Thread(target=finish, args=(wire,)) for wire in reversed(wires)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert errors == [0] * 24
        assert rss_of(server) - before < 30 * MEGABYTE


def test_a_thousand_connections_that_announce_two_gigabytes_cost_little(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs 4096 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    with serving(tmp_path, "socket.request.max.bytes=2147483647") as server, contextlib.ExitStack() as stack:
        before = rss_of(server)
        for _ in range(1000):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            sock.sendall(struct.pack(">i", 2**31 - 1) + bytes(1000))
        with Wire(server.port) as wire:
            assert wire.call(messages.ApiVersionsRequest(), 2).error_code == 0
        assert rss_of(server) - before < 60 * MEGABYTE


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 104_857_601, 2**31 - 1])
def test_a_length_that_cannot_be_ends_the_connection(server: ServerProcess, size: int) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(struct.pack(">i", size))
        assert wire.is_closed_by_broker()


def test_connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    configs = ["max.connections.per.ip=3", "max.connections.per.ip.overrides=127.0.0.2:1"]
    with serving(tmp_path, *configs) as server, contextlib.ExitStack() as stack:

        def connect(source: str) -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(source, 0))
            return stack.enter_context(sock)

        def is_served(sock: socket.socket) -> bool:
            try:
                sock.sendall(frame_of(messages.ApiVersionsRequest(), 2))
                return sock.recv(1) != b""
            except OSError:
                return False

        served = [is_served(connect(host)) for host in ["127.0.0.2"] * 2 + ["127.0.0.3"] * 4]
        assert served == [True, False, True, True, True, False]


def test_topics_and_partitions_are_bounded(tmp_path: Path) -> None:
    limits = {"logflume.request.max.topics": "2", "logflume.max.partitions": "20", "logflume.topic.max.partitions": "10"}
    with start_embedded(str(tmp_path), configs=limits | {"offsets.topic.num.partitions": "1"}) as broker:
        call = Calls(broker)
        request = messages.CreateTopicsRequest
        topics = [request.CreatableTopic(name=f"t{index}", num_partitions=1, replication_factor=1) for index in range(3)]
        answers = call(request(topics=topics), 7).topics
        assert [answer.error_code for answer in answers] == [ErrorCode.POLICY_VIOLATION] * 3
        assert "logflume.request.max.topics" in answers[0].error_message
        assert "logflume.topic.max.partitions" in call.create("wide", 11).error_message
        codes = [call.create(f"t{index}", 10).error_code for index in range(3)]
        assert codes[-1] == ErrorCode.POLICY_VIOLATION
        asked = messages.MetadataRequest.MetadataRequestTopic
        missing = messages.MetadataRequest(
            topics=[asked(name=f"new{index}") for index in range(3)], allow_auto_topic_creation=True
        )
        assert {topic.error_code for topic in call(missing, 12).topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_new_connections_wait_for_the_next_second() -> None:
    admission = Admission(BrokerConfig({"max.connection.creation.rate": "2"}), most_connections=lambda: 10)
    assert admission.pause_s(10.25) == 0
    assert admission.admit("a")
    assert admission.admit("a")
    assert admission.pause_s(10.25) == pytest.approx(0.75)
    assert admission.pause_s(11.0) == 0
    admission.left("a")
    assert admission.open_count == 1


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", ":5", "10.0.0.1:-5", "10.0.0.1:x", "a:1,b"])
def test_overrides_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(KafkaError, match="expected ADDRESS:NUMBER"):
        BrokerConfig({"max.connections.per.ip.overrides": text})
    assert parse_overrides("10.0.0.1:5,[::1]:7") == {"10.0.0.1": 5, "::1": 7}


def test_connections_leave_descriptors_for_files(tmp_path: Path) -> None:
    command = ["bash", "-c", 'ulimit -n 160; exec "$@"', "bash", sys.executable, "-m", "logflume.log.server"]
    command += ["--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(port))
        assert wire.call(create_topic_request("t", segment_bytes="2000"), 7).topics[0].error_code == 0
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        for _ in range(30):
            response = wire.call(produce_request("t", batch(bytes(900))), 9)
            assert response.responses[0].partition_responses[0].error_code == 0
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


class Client:
    """A holder of the budget's model: wants room, holds it, gives it back."""

    def __init__(self) -> None:
        self.held = self.idle = 0
        self.woken = 0

    def give_back(self) -> None:
        self.idle = 0
        self.budget.set_held(self, self.held)

    def resume(self) -> None:
        self.woken += 1

    budget: MemoryBudget


class BudgetModel(RuleBasedStateMachine):
    """Whatever clients do, the sum is right, at most one is over the limit, and nobody waits for ever."""

    LIMIT = 100

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(lambda: self.LIMIT)
        self.clients = [Client() for _ in range(4)]
        self.waiting: dict[Client, int] = {}
        for client in self.clients:
            client.budget = self.budget

    @rule(index=st.integers(0, 3), more=st.integers(1, 80))
    def grow(self, index: int, more: int) -> None:
        client = self.clients[index]
        if client in self.waiting:
            return
        if self.budget.may_grow(client, more):
            client.held += more
            self.budget.set_held(client, client.held + client.idle)
        else:
            assert self.budget.used_bytes + more > self.LIMIT
            self.waiting[client] = client.woken

    @rule(index=st.integers(0, 3))
    def finish(self, index: int) -> None:
        """A request is complete: its memory stays, idle, until it is asked for."""
        client = self.clients[index]
        if client not in self.waiting:
            client.held, client.idle = 0, client.held + client.idle
            if self.budget.is_wanted:
                client.give_back()

    @rule(index=st.integers(0, 3))
    def leave(self, index: int) -> None:
        client = self.clients[index]
        client.held = client.idle = 0
        self.waiting.pop(client, None)
        self.budget.forget(client)

    @invariant()
    def sums_are_right(self) -> None:
        self.waiting = {client: woken for client, woken in self.waiting.items() if client.woken == woken}
        assert self.budget.used_bytes == sum(client.held + client.idle for client in self.clients)
        over = self.budget.used_bytes - self.LIMIT
        assert over <= 0 or any(client.held + client.idle >= over for client in self.clients)
        assert not self.waiting or any(client.held for client in self.clients)


TestBudgetModel = BudgetModel.TestCase
