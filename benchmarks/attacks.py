"""A healthy client's latency: quiet, and beside each attack on the broker's one loop.

Run: python -m benchmarks.attacks [--seconds=N] [--json]

The healthy client sends one record at a time, acks=all and on disk, and waits for the answer. Each attacker has a process of its
own and sends its request again and again, each as soon as the last one is answered. What a figure says beside the quiet one of
the same run is how long others' requests keep the broker, and how much of the machine the attacker itself takes.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks._report import Figure, main
from benchmarks.broker import batch_of, call, create_topic, produce_frame, running_broker
from benchmarks.streams import option
from logflume.log.batch import Codec, encode_batch
from logflume.log.protocol import messages

BUDGET_MS = 20.0
"""What one request may keep the loop for; a healthy client waits for that, for its own write, and for its share of two cores."""
Attack = Callable[[socket.socket, int], None]


def markers(sock: socket.socket, turn: int) -> None:
    request = messages.WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name="healthy", partition_indexes=[1 + index % 20_000 for index in range(40_000)])
    marker = request.WritableTxnMarker(
        producer_id=turn, producer_epoch=0, transaction_result=False, topics=[topic], coordinator_epoch=0
    )
    call(sock, request(markers=[marker]), 1)


def topics(sock: socket.socket, turn: int) -> None:
    """Create and delete a hundred topics."""
    names = [f"topic-{number}" for number in range(100)]
    request = messages.CreateTopicsRequest
    wanted = [request.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    call(sock, request(topics=wanted), 7)
    call(sock, messages.DeleteTopicsRequest(topic_names=names, timeout_ms=60_000), 5)


def bomb(sock: socket.socket, turn: int) -> None:
    """A batch of 16 MB that is small until it is decompressed, into a topic that compresses anew."""
    batch = bytes(encode_batch([None] * 16, [bytes(1_000_000)] * 16, [0] * 16, codec=Codec.GZIP))
    sock.sendall(produce_frame("zstd", 0, batch, acks=-1))
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    sock.recv(size, socket.MSG_WAITALL)


def descriptions(sock: socket.socket, turn: int) -> None:
    request = messages.DescribeConfigsRequest
    asked = [request.DescribeConfigsResource(resource_type=2, resource_name="healthy", configuration_keys=None)] * 200
    call(sock, request(resources=asked), 4)


def patterns(sock: socket.socket, turn: int) -> None:
    request = messages.ConsumerGroupHeartbeatRequest
    beat = request(
        group_id=f"p{turn % 100}", member_id="m", rebalance_timeout_ms=1000, topic_partitions=[],
        subscribed_topic_names=None, subscribed_topic_regex="(t?){900}t{900}",
    )  # fmt: skip
    call(sock, beat, 1)


def joins(sock: socket.socket, turn: int) -> None:
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = request(
        group_id=f"g{turn}", member_id="", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    call(sock, join, 9)


def long_ids(sock: socket.socket, turn: int) -> None:
    request = messages.InitProducerIdRequest
    for name in (f"{turn}-{'x' * 900}", f"{turn}-{'x' * 32_000}"):
        call(sock, request(transactional_id=name, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1), 4)


def members(sock: socket.socket, turn: int) -> None:
    """Join and leave a group of thousands of partitions."""
    request = messages.ConsumerGroupHeartbeatRequest
    common = {"group_id": "big", "rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["big"]}
    call(sock, request(member_id="stays", member_epoch=0, topic_partitions=[], **common), 1)
    call(sock, request(member_id=f"m{turn}", member_epoch=0, topic_partitions=[], **common), 1)
    call(sock, request(group_id="big", member_id=f"m{turn}", member_epoch=-1), 1)


ATTACKS: dict[str, Attack] = {
    each.__name__: each for each in (markers, topics, bomb, descriptions, patterns, joins, long_ids, members)
}


def attack(name: str, host: str, port: int) -> None:
    """Do it until killed."""
    with socket.create_connection((host, port)) as sock:
        for turn in itertools.count():
            ATTACKS[name](sock, turn)


def measure() -> Iterator[Figure]:
    seconds = option("seconds", 5)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_broker(f"{scratch}/data") as (host, port, _, _),
        socket.create_connection((host, port)) as sock,
    ):
        create_topic(sock, "healthy", 20)
        create_topic(sock, "big", 4_000)
        _create_compressed(sock)
        frame = produce_frame("healthy", 0, batch_of(100, 100), acks=-1)
        yield from _figures("quiet", _delays_ms(sock, frame, seconds), None)
        for name in ATTACKS:
            command = [sys.executable, "-m", "benchmarks.attacks", "--attack", name, host, str(port)]
            with _attacking(command):
                _delays_ms(sock, frame, 1)
                delays = _delays_ms(sock, frame, seconds)
            yield from _figures(name, delays, BUDGET_MS)


@contextlib.contextmanager
def _attacking(command: list[str]) -> Iterator[None]:
    child = subprocess.Popen(command)
    try:
        yield
        assert child.poll() is None, "the attack ended"
    finally:
        child.kill()
        child.wait()


def _create_compressed(sock: socket.socket) -> None:
    request = messages.CreateTopicsRequest
    configs = {"compression.type": "zstd", "max.message.bytes": "20000000"}
    made = [request.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
    answer: Any = call(
        sock, request(topics=[request.CreatableTopic(name="zstd", num_partitions=1, replication_factor=1, configs=made)]), 7
    )
    assert answer.topics[0].error_code == 0, answer


def _delays_ms(sock: socket.socket, frame: bytes, seconds: float) -> list[float]:
    """Send one record after the other; return how long each answer took."""
    delays, end_s = [], time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < end_s:
        sock.sendall(frame)
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        sock.recv(size, socket.MSG_WAITALL)
        delays.append((time.perf_counter() - begin_s) * 1000)
    return sorted(delays)


def _figures(label: str, delays: list[float], budget_ms: float | None) -> Iterator[Figure]:
    yield Figure(f"{label}: answered, p50", delays[len(delays) // 2], "ms")
    yield Figure(f"{label}: answered, p99", delays[len(delays) * 99 // 100], "ms", budget_ms, is_upper=True)


if __name__ == "__main__":
    if "--attack" in sys.argv:
        name, host, port = sys.argv[sys.argv.index("--attack") + 1 :]
        attack(name, host, int(port))
    else:
        main(measure)
