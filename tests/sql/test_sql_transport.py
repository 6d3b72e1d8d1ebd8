"""HTTP of the client: an answer is whole or refused, and `close` ends what is still read."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from logflume.log import InvalidInput, TransportError
from logflume.sql.transport import Answer, Transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT_S = 20.0


@contextlib.contextmanager
def answering(*answers: bytes, holds: bool = False) -> Iterator[str]:
    """Serve one connection each, which is then ended, or held open."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)

        def serve() -> None:
            for answer in answers:
                with listening.accept()[0] as taken:
                    taken.recv(65536)
                    taken.sendall(answer)
                    if holds:
                        over.wait(LIMIT_S)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def ask(transport: Transport) -> Answer:
    return transport.send("GET", "/", headers={})


READS: list[Callable[[Answer], object]] = [lambda answer: list(answer.lines()), Answer.read]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"9\r\n[1]\n[2]\n\n\r\n",
        CHUNKED + b"9\r\n[1]\n[2]\n\n",
        CHUNKED + b"9\r\n[1]\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1]\n[2]\n\n",
    ],
)
def test_an_answer_that_is_cut_off_is_refused(read: Callable[[Answer], object], answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(TransportError, match="was cut off"):
        read(ask(Transport(address)))


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"2\r\n[1\r\n6\r\n]\r\n\n[2\r\n4\r\n]\n[3\r\n1\r\n]\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n[1]\r\n\n[2]\n[3]",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[1]\r\n\n[2]\n[3]",
    ],
)
def test_lines_are_whole_however_they_come(answer: bytes) -> None:
    with answering(answer) as address:
        assert list(ask(Transport(address)).lines()) == [b"[1]", b"[2]", b"[3]"]


def test_closing_ends_what_is_still_read() -> None:
    with answering(CHUNKED + b"4\r\n[1]\n\r\n", holds=True) as address:
        transport, failed, begun = Transport(address), list[BaseException](), threading.Event()
        answer = transport.send("GET", "/", headers={}, timeout_s=None)

        def follow() -> None:
            try:
                for _ in answer.lines():
                    begun.set()
            except TransportError as error:
                failed.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        assert begun.wait(LIMIT_S)
        transport.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert "cut off" in str(failed[0])
        with pytest.raises(TransportError, match="is closed"):
            ask(transport)


def test_a_connection_that_comes_back_after_the_end_is_ended() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as address:
        transport = Transport(address)
        answer = ask(transport)
        connection = answer._connection
        assert answer._response.read() == b"ok"
        transport.close()
        answer.close()
        assert connection.sock is None


def test_a_connection_with_a_high_descriptor_is_used_again() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1100:
        pytest.skip("no descriptor beyond 1024 is allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1024:
            held.append(os.dup(held[0]))
        whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        with answering(whole, whole) as address:
            transport = Transport(address)
            assert ask(transport).read() == b"ok"
            assert ask(transport).read() == b"ok"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("address", ["ftp://ann:secret@host", "http://ann:secret@host:port", "http://ann:sec/secret@[::1"])
def test_a_wrong_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(InvalidInput, match="no address of a SQL server") as refused:
        Transport(address)
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize(("address", "port"), [("http://[::1]", 80), ("https://[::1]", 443), ("http://[::1]:8", 8)])
def test_an_address_of_ipv6_needs_no_port(address: str, port: int) -> None:
    transport = Transport(address)
    assert (transport._host, transport._port) == ("::1", port)
