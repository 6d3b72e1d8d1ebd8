"""The records that the families read: late, out of order, at the same time, without key or value, broken; many keys and few."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from logflume.log.interfaces import Log
from logflume.log.records import Chunk
from tests.kills._families import KINDS, REFUNDS, SALES
from tests.kills._results import PARTITIONS
from tests.streams.test_operators_engine import TOPICS

_FEW = (*(f"k{n}".encode() for n in range(37)), b"v", b"w", b"x")
"""Keys that come again and again; families look those up that they make of a number or an item."""
_PER_KEY = 50
_LAST_MS = 800_000
"""The last time of `TOPICS`: two million times that, which the calendar's family makes of it, is not ahead of the clock."""
_BLOCK = 50_000


def fill(log: Log, families: Sequence[str], records: int, seed: int, *, has_few_keys: bool, part: range | None = None) -> int:
    """Write so many records to the topics of the families; return how many of the left topic have a key and can be decoded.

    `part`: only those of these numbers, of all that come of the seed.
    """
    written = part or range(records)
    chance = random.Random(seed)
    many = 0 if has_few_keys else records // _PER_KEY
    step_ms = min(3.6, _LAST_MS / records)

    def key() -> bytes | None:
        if not many or chance.random() < 0.5:
            return None if chance.random() < 0.01 else chance.choice(_FEW)
        return f"ü{chance.randrange(many)}".encode()

    def number(topic: str) -> bytes:
        return b'{"n":%d}' % chance.randrange(20)

    def sale(topic: str) -> bytes:
        row = {
            "shop": "s",
            "item": chance.choice(["a", "b", "ü", None]),
            "price": chance.choice([None, -0.0, chance.uniform(-9, 9)]),
        }
        if topic == SALES:
            row["amount"] = chance.choice([None, 13, *(chance.randrange(99) for _ in range(6))])
        return json.dumps(row).encode()

    readable = 0
    if any(name not in KINDS for name in families):
        readable = _write(log, TOPICS, records, written, chance, key, number, step_ms, 40)
    if any(name in KINDS for name in families):
        _write(log, (SALES, REFUNDS), records, written, chance, key, sale, 3_000, 12_000)
    return readable


def _write(
    log: Log,
    topics: Sequence[str],
    records: int,
    written: range,
    chance: random.Random,
    key: Callable[[], bytes | None],
    value: Callable[[str], bytes],
    step_ms: float,
    late_ms: int,
) -> int:
    """Write the records, each partition's in this order; return how many of the first topic have a key and can be decoded."""
    for topic in topics:
        log.admin().ensure_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
    producer, now_ms, readable = log.producer(), 1000.0, 0
    for start in range(0, records, _BLOCK):
        rows: dict[str, list[tuple[bytes | None, bytes | None, int]]] = {topic: [] for topic in topics}
        for number in range(start, min(start + _BLOCK, records)):
            now_ms += chance.choice([0, 0, 0, 1, 1, 2, 2, 2]) * step_ms
            topic = chance.choice(topics)
            back_ms = chance.choice([0, 0, 0, 0, late_ms / 6, late_ms])
            its_key, odd = key(), chance.random()
            its_value = None if odd < 0.02 else b"{broken" if odd < 0.025 else value(topic)
            if number not in written:
                continue
            readable += topic == topics[0] and its_key is not None and its_value != b"{broken"
            rows[topic].append((its_key, its_value, max(0, int(now_ms - back_ms))))
        for topic, some in ((topic, some) for topic, some in rows.items() if some):
            producer.send_chunk(topic, Chunk.from_columns(topic, *zip(*some, strict=True)))
        producer.flush()
    producer.close()
    return readable
