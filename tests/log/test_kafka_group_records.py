"""Apache Kafka's own code reads the records of every kind of group in `__consumer_offsets`, and writes the same bytes back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.groups import journal_records as classic
from logflume.log.broker.groups.consumer import records as consumer
from logflume.log.broker.groups.epoch_records import (
    EpochKey,
    GroupEpochValue,
    GroupKind,
    Role,
    TargetEpochValue,
    encode_epoch_key,
)
from logflume.log.broker.groups.streams import records as streams
from logflume.log.broker.groups.streams.assignor import Tasks
from logflume.log.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology

from . import _kafka_java as kafka

pytestmark = pytest.mark.skipif(
    bool(kafka.missing()) or shutil.which("javac") is None, reason=kafka.missing() or "needs a Java compiler"
)

PROGRAM = """
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Scanner;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;

public class ReadGroupRecords {
    public static void main(String[] args) {
        var serde = new GroupCoordinatorRecordSerde();
        var lines = new Scanner(System.in);
        while (lines.hasNext()) {
            byte[] key = HexFormat.of().parseHex(lines.next()), value = HexFormat.of().parseHex(lines.next());
            var record = serde.deserialize(ByteBuffer.wrap(key), ByteBuffer.wrap(value));
            byte[] keyAgain = serde.serializeKey(record), valueAgain = serde.serializeValue(record);
            boolean isSame = Arrays.equals(keyAgain, key) && Arrays.equals(valueAgain, value);
            System.out.println((isSame ? "same " : "other ") + record.value().message());
        }
    }
}
"""

TOPIC_A, TOPIC_B = bytes(range(16)), bytes(range(16, 32))
PARTITIONS = frozenset({(TOPIC_A, 0), (TOPIC_A, 3), (TOPIC_B, 1)})
TASKS = Tasks(frozenset({("0", 0), ("0", 2), ("1", 1)}), frozenset({("1", 0)}))


def consumer_pair(role: Role, value: Any, *, member_id: str = "") -> tuple[bytes, bytes]:
    key = encode_epoch_key(EpochKey(GroupKind.CONSUMER, role, "group", member_id))
    return key, consumer.encode_consumer_value(value)


def streams_pair(role: Role, value: Any, *, member_id: str = "") -> tuple[bytes, bytes]:
    key = encode_epoch_key(EpochKey(GroupKind.STREAMS, role, "group", member_id))
    return key, streams.encode_streams_value(value)


def classic_pairs() -> list[tuple[bytes, bytes]]:
    offset = classic.OffsetKey("group", "topic", 7)
    member = classic.StoredMember("m", "i", "client", "/host", 60_000, 45_000, b"subscription", b"assignment")
    return [
        (classic.encode_offset_key(offset), classic.encode_offset_value(classic.OffsetValue(5, -1, "text", 1_700_000_000_000))),
        (
            classic.encode_group_key(classic.GroupKey("group")),
            classic.encode_group_value(classic.GroupValue("consumer", 3, "range", "m", 1_700_000_000_000, (member,))),
        ),
    ]


def consumer_pairs() -> list[tuple[bytes, bytes]]:
    plain = consumer.MemberValue("i", "rack", "client", "/host", ("a", "b"), "x.*", 60_000, "uniform")
    old = consumer.ClassicMember(45_000, (("range", b"r"), ("sticky", b"")))
    mixed = consumer.MemberValue(None, None, "client", "/host", (), None, -1, None, old)
    assigned, revoking = frozenset({(TOPIC_A, 0), (TOPIC_A, 3)}), frozenset({(TOPIC_B, 1)})
    epochs = {(TOPIC_A, 0): 2, (TOPIC_A, 3): 4, (TOPIC_B, 1): 1}
    return [
        consumer_pair(Role.GROUP, GroupEpochValue(5, -7)),
        consumer_pair(Role.GROUP, GroupEpochValue(5, 0)),
        consumer_pair(Role.MEMBER, plain, member_id="m"),
        consumer_pair(Role.MEMBER, mixed, member_id="m"),
        consumer_pair(Role.TARGET_EPOCH, TargetEpochValue(5, 1_700_000_000_000)),
        consumer_pair(Role.TARGET_EPOCH, TargetEpochValue(5)),
        consumer_pair(Role.TARGET, PARTITIONS, member_id="m"),
        consumer_pair(Role.CURRENT, consumer.CurrentValue(5, 4, 1, assigned, revoking, epochs), member_id="m"),
    ]


def streams_pairs() -> list[tuple[bytes, bytes]]:
    changelog = InternalTopic("changelog", 0, 1, (("cleanup.policy", "compact"),))
    repartition = InternalTopic("repartition", 3, 0, ())
    first = Subtopology("0", ("a", "b"), (changelog,), ("repartition",), (), (CopartitionGroup((0, 1), ()),))
    second = Subtopology("1", (), (), (), (repartition,), (CopartitionGroup((), (0,)),))
    member = streams.StreamsMemberValue("rack", "client", "/host", 60_000, 0, "process", ("host", 65_535), (("zone", "z"),))
    bare = streams.StreamsMemberValue(None, "client", "/host", -1, 0, "process", None, ())
    epochs = {("0", 0): 2, ("0", 2): 3, ("1", 1): 4}
    current = streams.StreamsCurrentValue(5, 4, 2, TASKS, Tasks(frozenset({("2", 0)}), frozenset({("2", 1)})), epochs)
    return [
        streams_pair(Role.GROUP, streams.StreamsGroupValue(5, -7, 0, (("num.standby.replicas", "1"),))),
        streams_pair(Role.GROUP, streams.StreamsGroupValue(5, 7, -1, ())),
        streams_pair(Role.MEMBER, member, member_id="m"),
        streams_pair(Role.MEMBER, bare, member_id="m"),
        streams_pair(Role.TARGET_EPOCH, TargetEpochValue(5, 1_700_000_000_000)),
        streams_pair(Role.TARGET, TASKS, member_id="m"),
        streams_pair(Role.CURRENT, current, member_id="m"),
        streams_pair(Role.OWN, Topology(0, (first, second))),
    ]


def test_kafka_reads_and_writes_the_same_records(tmp_path: Path) -> None:
    program = tmp_path / "ReadGroupRecords.java"
    program.write_text(PROGRAM)
    pairs = [*classic_pairs(), *consumer_pairs(), *streams_pairs()]
    lines = "\n".join(f"{key.hex()} {value.hex()}" for key, value in pairs)
    command = ["java", *kafka.QUICK, "-cp", kafka.class_path(), str(program)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = done.stdout.splitlines()
    assert [line for line in told if not line.startswith("same ")] == []
    assert len(told) == len(pairs)
