"""Puts dead letters back where they came from: in a transaction with the place reached, so each goes back once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from logflume.log import InvalidInput
from logflume.log.interfaces import GroupMetadata, Log, OffsetAndMetadata, Producer
from logflume.log.records import Record, TopicPartition

from .problems import HEADER_PREFIX, letter_facts

_PER_TRANSACTION = 5_000


def replay(log: Log, topic: str, *, limit: int | None = None) -> Mapping[str, int]:
    """Send the dead letters of a topic that were not sent back before to the topics that they name; return topic -> how many.

    Those that are there when it begins: what is still wrong comes back meanwhile, and would go round for ever. The headers that
    say why they were kept are left out, so that a record is what it was. The group `<topic>-replay` remembers how far this has
    come.

    Raises:
        UnknownName: no such topic. InvalidInput: a record that is no dead letter; what came before it has been sent.
    """
    admin, group = log.admin(), f"{topic}-replay"
    partitions = [TopicPartition(topic, number) for number in range(admin.describe_topics([topic])[topic].partitions)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, read_committed=True)
    done = admin.group_offsets(group)
    consumer = log.consumer(read_committed=True)
    producer = log.producer(transactional_id=group)
    counts: Counter[str] = Counter()
    try:
        producer.init_transactions()
        consumer.assign(partitions)
        for each in partitions:
            consumer.seek(each, max(starts[each], done[each].offset) if each in done else starts[each])
        while any(consumer.position(each) < ends[each] for each in partitions) and (limit is None or counts.total() < limit):
            room = _PER_TRANSACTION if limit is None else min(limit - counts.total(), _PER_TRANSACTION)
            found = [record for chunk in consumer.poll(timeout_s=0.5, max_records=room) for record in chunk.records()]
            records = [record for record in found if record.offset < ends[TopicPartition(record.topic, record.partition)]]
            _send_back(producer, group, records, counts)
    finally:
        consumer.close()
        producer.close()
    return counts


def _send_back(producer: Producer, group: str, records: list[Record], counts: Counter[str]) -> None:
    if not records:
        return
    producer.begin_transaction()
    places: dict[TopicPartition, OffsetAndMetadata] = {}
    stopped: InvalidInput | None = None
    for record in records:
        facts = letter_facts(record.headers)
        if "topic" not in facts:
            stopped = InvalidInput(
                f"{record.topic}-{record.partition} offset {record.offset} is no dead letter: it does not say where it came from "
                f"(header {HEADER_PREFIX}topic); give the topic that an application has as dead_letter_topic"
            )
            break
        headers = tuple((name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX))
        partition = int(facts["partition"]) if "partition" in facts else None
        producer.send(
            facts["topic"], record.value, key=record.key, partition=partition, timestamp_ms=record.timestamp_ms, headers=headers
        )
        counts[facts["topic"]] += 1
        places[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset + 1, "")
    if places:
        producer.send_offsets(places, GroupMetadata(group, -1, ""))
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    if stopped is not None:
        raise stopped
