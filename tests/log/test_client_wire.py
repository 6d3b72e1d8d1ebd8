"""The wire side of the client: versions against brokers old and new, and answers that are none."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log import KafkaError, LogflumeError, TransportError, connect
from logflume.log.client.versions import choose_version
from logflume.log.client.wire import Address, WireChannel, WireTransport
from logflume.log.protocol import tables

# What brokers accept of the APIs this client uses: Apache Kafka 2.1 (the oldest supported), 3.9 and 4.3.
OLD = {0: (0, 7), 1: (0, 10), 2: (0, 4), 3: (0, 7), 8: (0, 6), 9: (0, 5), 10: (0, 2), 11: (0, 3), 12: (0, 2), 13: (0, 2)}
OLD |= {14: (0, 2), 15: (0, 2), 16: (0, 2), 18: (0, 2), 19: (0, 3), 20: (0, 3), 21: (0, 1), 22: (0, 1), 24: (0, 1), 25: (0, 1)}
OLD |= {26: (0, 1), 28: (0, 2), 32: (0, 2), 37: (0, 1), 42: (0, 1)}
NEW = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (2, 9), 12: (0, 4), 13: (0, 5)}
NEW |= {14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 24: (0, 5), 25: (0, 4)}
NEW |= {26: (0, 5), 28: (0, 5), 32: (1, 4), 37: (0, 3), 42: (0, 2), 44: (0, 1)}
MIDDLE = {key: (0, high) for key, (_, high) in NEW.items()} | {0: (0, 11), 1: (0, 17), 2: (0, 9), 3: (0, 12)}


@pytest.mark.parametrize("ranges", [OLD, MIDDLE, NEW], ids=["2.1", "3.9", "4.3"])
@pytest.mark.parametrize("has_transaction_v2", [False, True])
def test_a_version_is_found_for_every_api_of_every_broker(ranges: dict[int, tuple[int, int]], has_transaction_v2: bool) -> None:
    for key, (low, high) in ranges.items():
        version = choose_version(key, ranges, has_transaction_v2=has_transaction_v2)
        assert low <= version <= high
        assert version in tables.api(key).versions


def test_transactions_of_the_newer_kind_need_the_feature() -> None:
    assert [choose_version(k, NEW) for k in (0, 28, 26)] == [11, 4, 4]
    assert [choose_version(k, NEW, has_transaction_v2=True) for k in (0, 28, 26)] == [12, 5, 5]


def test_versions_that_add_nothing_are_left_out() -> None:
    assert [choose_version(11, {11: (0, highest)}) for highest in (4, 7, 9, 10)] == [4, 5, 9, 9]


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with pytest.raises(KafkaError, match="IncrementalAlterConfigs: this client needs a version of 0 to 1, the broker has none"):
        choose_version(44, OLD)


class Babbler:
    """A server that answers every connection with the same bytes."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.answer = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(self.answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def babbler() -> Iterator[Babbler]:
    server = Babbler()
    yield server
    server.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


garbage = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(framed),
    st.binary(max_size=60).map(lambda body: framed(b"\0\0\0\0" + body)),
    st.sampled_from([b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack(">i", 2**31 - 1), struct.pack(">i", -5), framed(b"")]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage)
def test_garbage_is_an_error_and_never_hangs_or_allocates(babbler: Babbler, answer: bytes) -> None:
    babbler.answer = answer
    with pytest.raises(LogflumeError):
        connect(babbler.address, timeout_s=10)


def test_a_web_server_is_recognised_as_none(babbler: Babbler) -> None:
    babbler.answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(LogflumeError, match="is it a Kafka broker"):
        connect(babbler.address, timeout_s=10)


class OpenConnection:
    """A connection that notes what is sent over it, and answers when it is told to."""

    is_open, is_ending = True, False

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, message: str, **_: object) -> asyncio.Future[str]:
        self.sent.append(message)
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(message)
        return answer


@pytest.mark.parametrize("ticks", range(6))
def test_requests_keep_their_order_while_a_connection_opens(monkeypatch: pytest.MonkeyPatch, ticks: int) -> None:
    """One request in each turn of the loop, before and after the connection is there: none overtakes another."""
    opened = OpenConnection()

    async def dial(*_: object) -> OpenConnection:
        for _ in range(ticks):
            await asyncio.sleep(0)
        return opened

    async def send_all() -> list[str]:
        transport = WireTransport([Address("127.0.0.1", 1)])
        transport.learn_nodes({0: ("127.0.0.1", 1)})
        channel = transport.channel("test")
        tasks: list[asyncio.Task[str]] = []
        for number in range(40):
            tasks.append(asyncio.create_task(channel.request(str(number), node=0)))  # type: ignore[arg-type]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    monkeypatch.setattr(WireChannel, "_dial", dial)
    wanted = [str(number) for number in range(40)]
    assert asyncio.run(send_all()) == wanted
    assert opened.sent == wanted


def test_requests_that_wait_for_a_connection_fail_with_it_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt is made for all of them, and the next request makes one of its own."""
    attempts: list[int] = []

    async def dial(*_: object) -> OpenConnection:
        attempts.append(1)
        await asyncio.sleep(0.01)
        raise ConnectionRefusedError

    async def send_all() -> list[object]:
        channel = WireTransport([Address("127.0.0.1", 1)]).channel("test")
        tasks = [asyncio.create_task(channel.request(str(number))) for number in range(5)]  # type: ignore[arg-type]
        return await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.setattr(WireChannel, "_dial", dial)
    found = asyncio.run(send_all())
    assert [type(each) for each in found] == [TransportError] * 5
    assert len(attempts) == 1
