"""What access control costs on the hot path: CPU time of a produce and a fetch request in the broker's core, without sockets.

Modes are taken in turn in one process, so that their ratios hold on a noisy machine. Run: python -m benchmarks.access
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from logflume.log.batch import encode_batch
from logflume.log.broker.access import AclAuthorizer, Operation, Pattern, Permission, Resource
from logflume.log.broker.access.acls import Acl
from logflume.log.broker.core import Core
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.quotas import QuotaTable
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedTime
from logflume.log.protocol import messages
from logflume.log.storage import DataDir, OsDisk, PartitionLog

from ._report import Figure, main

ROUNDS, REQUESTS = 150, 200
ACLS = 1_000
PARTITIONS = 4
BUDGETS = {f"{ACLS} ACLs": 1.1, "quotas": 1.3}
"""How many times the CPU time without them a request may take."""


class _NoFlush:
    """Says at once that all is durable: what is measured is the CPU time before the disk."""

    def request(self, log: PartitionLog, callback: Callable[[Exception | None], None]) -> None:
        ticket = log.begin_flush()
        if ticket is not None:
            log.finish_flush(ticket)
        callback(None)


def _rules() -> list[Acl]:
    """Many rules about other topics and principals, and one prefix that lets the client in."""
    others = [
        Acl(
            Resource.TOPIC,
            f"team{number % 50}-{number}",
            Pattern.PREFIXED if number % 2 else Pattern.LITERAL,
            f"User:u{number}",
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        for number in range(ACLS)
    ]
    return [*others, Acl(Resource.TOPIC, "flig", Pattern.PREFIXED, "User:*", "10.0.0.0/8", Operation.ALL, Permission.ALLOW)]


def _requests() -> dict[str, Any]:
    batch = encode_batch([b"k"] * 10, [b"v" * 100] * 10, [1_700_000_000_000] * 10)
    produce, fetch = messages.ProduceRequest, messages.FetchRequest
    data = [produce.PartitionProduceData(index=index, records=memoryview(batch)) for index in range(PARTITIONS)]
    wanted = [fetch.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10_000) for index in range(PARTITIONS)]
    return {
        "produce": produce(acks=-1, topic_data=[produce.TopicProduceData(name="flights", partition_data=data)]),
        "fetch": fetch(max_wait_ms=0, min_bytes=1, topics=[fetch.FetchTopic(topic="flights", partitions=wanted)]),
    }


def access() -> Iterable[Figure]:
    """Measure produce and fetch of 4 partitions with no authorizer, with one, and with quotas."""
    with tempfile.TemporaryDirectory() as path:
        clock = SimulatedTime()
        disk = OsDisk()
        core = Core(
            DataDir.open(path, disk=disk),
            disk=disk,
            config=BrokerConfig(),
            clock=clock,
            timers=clock,
            flusher=_NoFlush(),
            addresses={},
        )
        handlers = Handlers(core)
        _create_topic(handlers, "flights")
        authorizer = AclAuthorizer(_rules())
        quota = QuotaTable({frozenset({("user", None)}): {"producer_byte_rate": 1e15, "consumer_byte_rate": 1e15}})
        modes: dict[str, tuple[AclAuthorizer | None, QuotaTable]] = {
            "no authorizer": (None, QuotaTable({})),
            f"{ACLS} ACLs": (authorizer, QuotaTable({})),
            "quotas": (None, quota),
        }
        for name, request in _requests().items():
            context = RequestContext(request.api_key, 9 if name == "produce" else 12, 1, "client", "10.1.2.3", 1)
            spent = {mode: float("inf") for mode in modes}
            for _ in range(ROUNDS):
                for mode, (own_authorizer, table) in modes.items():
                    core.authorizer = own_authorizer
                    core.quotas.set_table(table)
                    spent[mode] = min(spent[mode], _cpu_us(core, handlers, context, request))
            plain = spent["no authorizer"]
            for mode, cpu_us in spent.items():
                yield Figure(f"{name}, {PARTITIONS} partitions, {mode}: CPU", cpu_us, "us/request")
                if mode != "no authorizer":
                    yield Figure(f"{name}, {mode}: times as without", cpu_us / plain, "x", BUDGETS[mode], is_upper=True)
        core.close()
        core.data_dir.close()
    yield Figure(
        f"authorisation of a request alone, {ACLS} ACLs: CPU", _decision_us(authorizer), "us/request", 1.0, is_upper=True
    )


def _create_topic(handlers: Handlers, name: str) -> None:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
    asked = request(topics=[topic], timeout_ms=1_000)
    answer = handlers.handle(RequestContext(asked.api_key, 7, 1, "client", "10.1.2.3", 1), asked)
    made = answer.value if isinstance(answer, Reply) else answer
    assert [each.error_code for each in made.topics] == [0]


def _decision_us(authorizer: AclAuthorizer) -> float:
    """Return what it takes to find a client's rights and decide on a topic, as each request does."""
    best_us = float("inf")
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(REQUESTS * 10):
            authorizer.rights("User:client", "10.1.2.3").allows(Operation.READ, Resource.TOPIC, "flights")
        best_us = min(best_us, (time.process_time() - began_s) / (REQUESTS * 10) * 1e6)
    return best_us


def _cpu_us(core: Core, handlers: Handlers, context: RequestContext, request: Any) -> float:
    handle, quotas = handlers.handle, core.quotas
    began_s = time.process_time()
    for _ in range(REQUESTS):
        response = handle(context, request)
        if quotas.is_active:
            quotas.settle(context, 5_000, 50_000, response)
    return (time.process_time() - began_s) / REQUESTS * 1e6


if __name__ == "__main__":
    main(access)
