"""A hundred thousand connections of strangers, in bytes: nobody gets in, nothing but logins is answered, nothing grows or hangs.

The broker's own connections, handlers and mechanisms, over sockets and a loop that are in this thread. What breaks it is told
by the number of its seed.
"""

import hashlib
import itertools
import logging
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import ANONYMOUS
from logflume.log.broker.security import Login, LoginCounts, LoginPolicy
from logflume.log.broker.security.bearer import BearerExchange, TokenRules
from logflume.log.broker.security.credentials import Mechanism, make_credential
from logflume.log.broker.security.login import Exchange
from logflume.log.broker.security.mechanisms import UserAccounts
from logflume.log.broker.security.plain import PlainExchange
from logflume.log.broker.security.scram import ScramExchange
from logflume.log.protocol import frames, messages
from logflume.log.server.budget import MemoryBudget
from logflume.log.server.connection import MAX_LOGIN_FRAME_BYTES, Connection
from logflume.log.server.traffic import Traffic

from ._simulated_broker import SimulatedBroker

INPUTS = 100_000
HANDSHAKE, AUTHENTICATE = messages.SaslHandshakeRequest, messages.SaslAuthenticateRequest
SECRET = "alice's own secret"


class Pipe:
    """A socket that has received all that its client ever sends, in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces, self.sent, self.is_closed = pieces, bytearray(), False

    def fileno(self) -> int:
        return 99

    def recv_into(self, room: memoryview) -> int:
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        if len(piece) > len(room):
            self._pieces.insert(0, piece[len(room) :])
            piece = piece[: len(room)]
        room[: len(piece)] = piece
        return len(piece)

    def sendmsg(self, buffers: list[Any], ancillary: Any = (), flags: int = 0) -> int:
        before = len(self.sent)
        for each in buffers:
            self.sent += each
        return len(self.sent) - before

    def close(self) -> None:
        self.is_closed = True


class Turns:
    """A loop whose turns are taken by `run`; an endless one is a failure."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], Any]] = []
        self._reader: Callable[[], Any] | None = None

    def time(self) -> float:
        return 0.0

    def add_reader(self, fd: int, callback: Callable[[], Any]) -> None:
        self._reader = callback

    def remove_reader(self, fd: int) -> None:
        self._reader = None

    def add_writer(self, fd: int, callback: Callable[[], Any]) -> None:
        raise AssertionError("everything was sent at once")

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._soon.append(partial(callback, *args))

    def run(self) -> None:
        for _ in range(1000):
            due, self._soon = self._soon, []
            for callback in due:
                callback()
            if self._reader is not None:
                self._reader()
            elif not due:
                return
        raise AssertionError("a thousand turns and no end")


class NoKeys:
    def find(self, key_id: str) -> None:
        return None


class Gate:
    """A broker with a user, and connections that wait for a login by each mechanism."""

    def __init__(self, path: Path) -> None:
        self.broker = SimulatedBroker(path)
        core = self.broker.core
        self.handlers: Handlers = self.broker.handlers
        salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), b"salt" * 4, 4096)
        core.users.credentials = {"alice": {Mechanism.SHA_256: make_credential(Mechanism.SHA_256, 4096, b"salt" * 4, salted)}}
        self.counts, self._numbers = LoginCounts(), itertools.count(1)
        nonces = random.Random(1)
        makers: dict[str, Callable[[], Exchange]] = {
            "PLAIN": partial(PlainExchange, core.users, {"kept": SECRET}, self._offload),
            "SCRAM-SHA-256": partial(ScramExchange, Mechanism.SHA_256, UserAccounts(core), lambda: f"n{nonces.random()}"),
            "OAUTHBEARER": partial(BearerExchange, TokenRules("i", {"a"}), NoKeys(), lambda: 0.0),
        }
        self.policy = LoginPolicy(makers, core.clock, core.timers, self.counts, failed_delay_ms=0)
        self.budget = MemoryBudget(lambda: 1 << 30)

    def _offload(self, work: Callable[[], Any]) -> Reply:
        """Judge no password: stretching one takes milliseconds, and its answer would be no."""
        reply = Reply()
        reply.set(False)
        return reply

    def serve(self, pieces: list[bytes]) -> tuple[Pipe, Login]:
        """Let a stranger say all that he has to say."""
        pipe, turns = Pipe(pieces), Turns()
        login = Login(self.policy, principal=ANONYMOUS, host="10.0.0.1")
        socket: Any = pipe
        loop: Any = turns
        connection = Connection(
            socket, loop, self.handlers, connection_id=next(self._numbers), host="10.0.0.1", listener="X",
            on_close=lambda _: None, budget=self.budget, traffic=Traffic(), login=login,
        )  # fmt: skip
        turns.run()
        assert pipe.is_closed
        assert connection._inbox.held_bytes <= 4 * MAX_LOGIN_FRAME_BYTES
        return pipe, login


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    made = Gate(tmp_path_factory.mktemp("gate"))
    logging.disable(logging.CRITICAL)  # pytest would keep a line of each
    yield made
    logging.disable(logging.NOTSET)
    made.broker.close()


def framed(message: Any, version: int) -> bytes:
    return b"".join(bytes(part) for part in frames.request_frame(message, version, 1, "fuzz"))


def bare(token: bytes) -> bytes:
    return struct.pack(">i", len(token)) + token


def conversations() -> list[bytes]:
    """Return what clients say until they are refused: each mechanism, bare and in requests, and what is not theirs to ask."""
    tokens = {
        "PLAIN": [b"\0alice\0wrong"],
        "SCRAM-SHA-256": [b"n,,n=alice,r=abcdef", b"c=biws,r=abcdefn0.5,p=" + b"A" * 43 + b"="],
        "OAUTHBEARER": [b"n,,\x01auth=Bearer e30.e30.e30\x01\x01", b"\x01"],
    }
    said = [framed(messages.ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)]
    for mechanism, own in tokens.items():
        said.append(framed(HANDSHAKE(mechanism=mechanism), 0) + b"".join(map(bare, own)))
        said += [
            framed(HANDSHAKE(mechanism=mechanism), 1) + b"".join(framed(AUTHENTICATE(auth_bytes=token), version) for token in own)
            for version in (0, 2)
        ]
    said.append(framed(messages.MetadataRequest(topics=[]), 12))
    said.append(framed(messages.CreateTopicsRequest(topics=[]), 7))
    return said


INTERESTING = (-(2**31), -1, 0, 1, 7, 8, 2**31 - 1, MAX_LOGIN_FRAME_BYTES, MAX_LOGIN_FRAME_BYTES + 1, 1 << 20)


def mangled(rng: random.Random, seed: bytes) -> bytes:
    """Return bytes with some changed, cut, doubled or put in."""
    data = bytearray(seed)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if position < len(data):
                data[position] ^= 1 << rng.randrange(8)
            case 1:
                data[position:position] = rng.randbytes(rng.randint(1, 16))
            case 2:
                del data[position : position + rng.randint(1, 16)]
            case 3:
                data[position : position + 4] = struct.pack(">i", rng.choice(INTERESTING))
            case 4:
                data[position:position] = data[position : position + rng.randint(1, 64)]
            case _:
                data[position : position + 2] = struct.pack(">h", rng.choice((-1, 0, 17, 18, 36, 32767)))
    return bytes(data)


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Return bytes as the network may deliver them."""
    places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))})
    return [data[begin:end] for begin, end in itertools.pairwise(places) if begin < end]


@pytest.mark.slow
def test_a_hundred_thousand_strangers_are_not_let_in(gate: Gate) -> None:
    said = conversations()
    answered = 0
    for number in range(INPUTS):
        rng = random.Random(number)
        data = mangled(rng, b"".join(rng.choices(said, k=rng.choice((1, 1, 2)))))
        pipe, login = gate.serve(cut(rng, data))
        assert login.principal == ANONYMOUS, number
        assert login.is_waiting, number
        assert len(pipe.sent) <= 64 * 1024, number
        answered += bool(pipe.sent)
    assert gate.counts.by_outcome["PLAIN", "ok"] == 0
    assert answered > INPUTS // 10, "most of it was not even understood"
    assert all(gate.counts.by_outcome[name, "failed"] > INPUTS // 100 for name in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"))
    assert gate.budget.used_bytes == 0


def test_an_honest_login_passes_the_same_gate(gate: Gate) -> None:
    honest = framed(HANDSHAKE(mechanism="PLAIN"), 1) + framed(AUTHENTICATE(auth_bytes=f"\0kept\0{SECRET}".encode()), 2)
    pipe, login = gate.serve([honest, framed(messages.MetadataRequest(topics=[]), 12)])
    assert login.principal == "User:kept"
    assert not login.is_waiting
    assert b"kept" not in pipe.sent
