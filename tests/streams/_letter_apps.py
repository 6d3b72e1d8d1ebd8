"""Applications that leave records out: some that cannot be read, some whose function raises, some whose result is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

import logflume as lf
from logflume import col
from logflume.log import Log
from logflume.log.records import Record
from logflume.streams.planner import plan
from logflume.streams.runtime.problems import letter_facts
from logflume.streams.seams import Plan

from .running import read

PARTITIONS = 3
KINDS = ("chain", "counted", "regrouped", "summed")
"""A chain of functions; counts per key; counts per item; sums per item whose expression cannot be evaluated for some items."""
RESULT_MAX_BYTES = 300


class Sale(msgspec.Struct):
    n: int
    item: str


def checked(sale: Sale) -> Sale:
    if sale.n % 11 == 3:
        raise ValueError(f"no such number: {sale.n}")
    return sale


def make(name: str, kind: str) -> Plan:
    app = lf.App(name)
    sales = app.stream("sales", Sale, key=str).map_values(checked)
    match kind:
        case "chain":
            sales.select(col.n, text=col.item.rpad(col.n * 8, "x")).to(f"{name}-out")
        case "counted":
            sales.group_by_key().aggregate(n=lf.count()).to(f"{name}-out")
        case "regrouped":
            sales.group_by(col.item).aggregate(n=lf.count(), most=lf.max(col.n)).to(f"{name}-out")
        case "summed":
            sales.group_by(col.item).aggregate(n=lf.sum(col.item.cast(int))).to(f"{name}-out")
    return plan(app.topology())


def maker(name: str, kind: str) -> Callable[[], Plan]:
    return partial(make, name, kind)


def sell(log: Log, first: int, stop: int, *, is_broken: bool = False) -> None:
    """Write sales, some with a header, of which a few are nearly all that there is; some of them, or all, are broken."""
    producer = log.producer()
    for i in range(first, stop):
        value = msgspec.json.encode({"n": i % 50, "item": "ab12"[i % 4]})
        if is_broken or i % 17 == 5:
            value = b"{broken %d" % i
        headers = (("of", b"%d" % i + bytes(RESULT_MAX_BYTES if i % 31 == 7 else 0)),) if i % 3 else ()
        key = None if i % 29 == 0 else b"k%d" % (i % 7)
        producer.send("sales", value, key=key, timestamp_ms=1_000 + i, headers=headers)
    producer.flush()
    producer.close()


def create_topics(log: Log, *names: str) -> None:
    """Create the sales, and topics of results that do not take what is long."""
    admin = log.admin()
    admin.ensure_topic("sales", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    for name in names:
        configs = {"max.message.bytes": str(RESULT_MAX_BYTES), "retention.ms": "-1"}
        admin.ensure_topic(f"{name}-out", partitions=PARTITIONS, configs=configs)


def letters_of(log: Log, topic: str, name: str) -> Counter[object]:
    """Return the letters of an application with all that they say, but its name, and the line of the engine that was at it.

    A record of a repartition topic has an offset there when it is live alone.
    """
    return Counter(_told(record, name) for record in read(log, topic) if letter_facts(record.headers)["application"] == name)


def _told(record: Record, name: str) -> object:
    facts = {key: value.replace(name, "NAME") for key, value in letter_facts(record.headers).items()}
    if "stacktrace" in facts:
        facts["stacktrace"] = facts["stacktrace"].splitlines()[-1]
    if facts["topic"].endswith("-repartition"):
        facts.pop("offset")
    own = tuple(header for header in record.headers if not header[0].startswith("__streams.errors."))
    return record.key, record.value, record.timestamp_ms, own, tuple(facts.items())
