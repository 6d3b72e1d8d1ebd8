"""A healthy client beside each attack on the loop: it asks between any two turns, and is answered within its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logflume.log.batch import Codec, encode_batch
from logflume.log.broker.replies import Reply
from logflume.log.protocol import messages

from ._turned_broker import MOST_WORK, TurnedBroker
from ._wire import batch, create_topic_request, produce_request

Attack = list[tuple[Any, int]]
CLIENTS_TURN = 5_000
"""Calls that a healthy client's request takes at most, in the turn in which it is asked: 0.5 ms."""


def markers() -> Attack:
    request = messages.WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name="healthy", partition_indexes=[index % 20_000 for index in range(40_000)])
    marker = request.WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=False, topics=[topic], coordinator_epoch=0
    )
    return [(request(markers=[marker]), 1)]


NAMES = [f"topic-{number}" for number in range(300)]


def creations() -> Attack:
    request = messages.CreateTopicsRequest
    topics = [request.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES]
    return [(request(topics=topics), 7)]


def deletions() -> Attack:
    return [(messages.DeleteTopicsRequest(topic_names=NAMES), 5)]


def a_bomb() -> Attack:
    """A batch that is small until it is decompressed, into a topic that compresses anew."""
    bomb = encode_batch([None] * 16, [bytes(1_000_000)] * 16, [0] * 16, codec=Codec.GZIP)
    return [(produce_request("zstd", bytes(bomb)), 9)]


def descriptions() -> Attack:
    request = messages.DescribeConfigsRequest
    topics = [request.DescribeConfigsResource(resource_type=2, resource_name="healthy", configuration_keys=None)] * 60
    return [(request(resources=topics), 4)] * 4


def patterns() -> Attack:
    request = messages.ConsumerGroupHeartbeatRequest
    subscribed = {"subscribed_topic_names": None, "subscribed_topic_regex": "(t?){900}t{900}", "topic_partitions": []}
    return [(request(group_id="p", member_id=f"m{n}", rebalance_timeout_ms=1000, **subscribed), 1) for n in range(5)]


def joins() -> Attack:
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"")
    common = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [protocol]}
    return [(request(group_id=f"g{n}", member_id="", **common), 9) for n in range(1_000)]


def long_ids() -> Attack:
    request = messages.InitProducerIdRequest
    common = {"transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    ids = [f"{number}-{'x' * length}" for number in range(200) for length in (900, 32_000)]
    return [(request(transactional_id=name, **common), 4) for name in ids]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnedBroker]:
    broker = TurnedBroker(tmp_path_factory.mktemp("attacked"))
    broker.call(create_topic_request("healthy", 20), 7)
    broker.call(create_topic_request("zstd", 1, **{"compression.type": "zstd", "max.message.bytes": "20000000"}), 7)
    yield broker
    broker.close()


def value_of(outcome: Any) -> Any:
    return outcome.value if isinstance(outcome, Reply) else outcome


def ask(broker: TurnedBroker, asked: int) -> None:
    """Produce a record, ask for the end, and read it, as a healthy client does; all is answered within the turn."""
    produced = value_of(broker.begin(produce_request("healthy", batch(b"%d" % asked)), 9))
    assert produced is not None, "the answer waits for somebody's attack"
    (answer,) = produced.responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (0, asked)
    request = messages.ListOffsetsRequest
    partition = request.ListOffsetsPartition(partition_index=0, timestamp=-1)
    told = value_of(
        broker.begin(request(replica_id=-1, topics=[request.ListOffsetsTopic(name="healthy", partitions=[partition])]), 7)
    )
    assert told is not None
    assert told.topics[0].partitions[0].offset == asked + 1


@pytest.mark.parametrize(
    "attack",
    [markers, creations, deletions, a_bomb, descriptions, patterns, joins, long_ids],
    ids=lambda attack: attack.__name__,
)
def test_a_healthy_client_is_answered_between_any_two_turns_of_an_attack(
    broker: TurnedBroker, attack: Callable[[], Attack]
) -> None:
    partition = broker.core.partition("healthy", 0)
    assert partition is not None
    waits: list[int] = []
    broker.turns.longest = 0
    answers = []
    asked = 0

    def healthy() -> None:
        nonlocal asked
        waits.append(broker.turns.longest)
        broker.turns.longest = 0
        ask(broker, partition.log.log_end_offset)
        asked += 1
        assert broker.turns.longest <= CLIENTS_TURN, "its own request"
        broker.turns.longest = 0

    for request, version in attack():
        answers.append(broker.begin(request, version))
        healthy()
    while broker.turns.run_one():
        healthy()
    assert asked >= len(answers)
    assert max(waits) <= MOST_WORK, "calls until it had its turn"
    late = [each for each in answers if isinstance(each, Reply) and not each.is_done]
    assert not late or attack is joins, "members of new groups are told after a while"
