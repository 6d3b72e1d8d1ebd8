"""The same client over all transports: embedded, TCP, and the Unix socket of a process that holds the directory."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

from logflume.log import (
    Chunk,
    ClientClosed,
    InvalidInput,
    KafkaError,
    LogflumeError,
    OffsetAndMetadata,
    OffsetOutOfRange,
    RecordMetadata,
    TopicPartition,
    TransportError,
    UnknownName,
    connect,
)
from logflume.log.client.fetcher import Fetcher
from logflume.log.client.log import Log

from ._client_tools import WAIT_S, read, read_all, wait_until
from ._server_process import ServerProcess


@pytest.fixture(params=["embedded", "tcp", "joined"])
def log(request: pytest.FixtureRequest, tmp_path: Path, server: ServerProcess) -> Iterator[Log]:
    where = {"embedded": tmp_path, "tcp": server.address, "joined": Path(server.data_dir)}[request.param]
    with connect(where) as opened:
        yield opened


def test_records_go_through_whole(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2)
    producer = log.producer()
    sent = [
        producer.send(topic, b"value", key=b"key", partition=1, timestamp_ms=1234, headers=(("h", b"1"), ("h", None))),
        producer.send(topic, None, key=b"", partition=1, timestamp_ms=0),
        producer.send(topic, b"", partition=1, timestamp_ms=99),
    ]
    assert [future.result(WAIT_S).offset for future in sent] == [0, 1, 2]
    assert sent[0].result().timestamp_ms == 1234
    found = read_all(log, topic)[1]
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in found] == [
        (0, 1234, b"key", b"value", (("h", b"1"), ("h", None))),
        (1, 0, b"", None, ()),
        (2, 99, None, b"", ()),
    ]


def test_the_future_of_a_record_is_one_as_any_but_for_taking_the_record_back(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer = log.producer()
    told: list[Future[RecordMetadata]] = []
    sent = [producer.send(topic, b"value", partition=0) for _ in range(3)]
    sent[0].add_done_callback(told.append)
    assert not sent[1].cancel()
    assert wait(sent[:2], WAIT_S).done == set(sent[:2])
    assert [future.result(WAIT_S).offset for future in as_completed([sent[2]], WAIT_S)] == [2]
    assert [future.done() for future in sent] == [True] * 3
    assert [future.exception() for future in sent] == [None] * 3
    assert not sent[1].cancelled()
    sent[2].add_done_callback(told.append)
    wait_until(lambda: told == [sent[0], sent[2]])
    assert [future.result().offset for future in sent] == [0, 1, 2]


def test_what_is_opened_in_with_is_closed_at_its_end(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    with log.producer() as producer:
        sent = producer.send(topic, b"value")
    assert sent.result(0).offset == 0
    with pytest.raises(ClientClosed):
        producer.send(topic, b"more")
    with log.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in read(consumer, 1)] == [b"value"]
    with pytest.raises(ClientClosed):
        consumer.poll()


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"value": "text"}, r"expected bytes or None as value, found str; send value\.encode\(\)"),
        ({"value": 7}, "expected bytes or None as value, found int"),
        ({"value": b"v", "key": "text"}, r"expected bytes or None as key, found str; send key\.encode\(\)"),
        ({"value": b"v", "timestamp_ms": "now"}, "expected whole milliseconds as timestamp_ms, found str"),
        ({"value": b"v", "timestamp_ms": 1.5}, "expected whole milliseconds as timestamp_ms, found float"),
        ({"value": b"v", "timestamp_ms": 2**63}, "expected a timestamp_ms of 64 bits"),
        ({"value": b"v", "headers": [("h", "text")]}, "expected bytes or None as value of header 'h', found str"),
        ({"value": b"v", "headers": [(b"h", b"v")]}, r"expected headers as \(name, bytes or None\) pairs"),
        ({"value": b"v", "headers": ["h"]}, r"expected headers as \(name, bytes or None\) pairs"),
        ({"value": b"v", "partition": 0.5}, "expected a number as partition, found float"),
        ({"value": b"v", "partition": 1}, "has partitions 0 to 0, found 1"),
        ({"value": b"v", "topic": b"bytes"}, "expected a topic's name, found bytes"),
    ],
)
def test_a_record_of_wrong_types_is_refused_at_once_and_the_others_arrive(
    log: Log, topic: str, record: dict[str, object], error: str
) -> None:
    log.admin().create_topic(topic)
    producer = log.producer()
    before = producer.send(topic, b"before")
    with pytest.raises((TypeError, InvalidInput), match=error):
        producer.send(**{"topic": topic, **record})  # type: ignore[arg-type]
    after = producer.send(topic, bytearray(b"after"), key=memoryview(b"k"))  # type: ignore[arg-type]
    producer.flush(timeout_s=WAIT_S)
    assert (before.result(0).offset, after.result(0).offset) == (0, 1)


def test_what_no_request_can_hold_is_refused_at_once(log: Log) -> None:
    for name in (b"bytes", 7):
        with pytest.raises(InvalidInput, match="a field has a value that does not fit"):
            log.admin().create_topic(name)  # type: ignore[arg-type]


def test_a_fault_of_the_sender_reaches_whoever_waits(log: Log, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log.admin().create_topic(topic)
    producer = log.producer()
    assert producer.send(topic, b"good").result(WAIT_S).offset == 0

    def broken(*_: object) -> bytes:
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr("logflume.log.client.batches.PendingBatch.wire_bytes", broken)
        lost = producer.send(topic, b"lost")
        with pytest.raises(LogflumeError, match="ZeroDivisionError: a fault"):
            producer.flush(timeout_s=WAIT_S)
        with pytest.raises(LogflumeError, match="ZeroDivisionError: a fault"):
            lost.result(0)
    assert producer.send(topic, b"good again").result(WAIT_S).offset == 1


@pytest.mark.parametrize(
    "where", ["fetcher.Fetcher._queue", "group.GroupMember._beat", "consumer_protocol.ConsumerProtocolMembership._beat"]
)
def test_a_fault_of_the_consumer_reaches_whoever_polls(log: Log, topic: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log.admin().create_topic(topic)
    log.producer().send(topic, b"lost").result(WAIT_S)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(f"logflume.log.client.{where}", broken)
    consumer = log.consumer(group_id=topic, group_protocol="consumer" if "protocol" in where else "classic")
    consumer.subscribe([topic])
    with pytest.raises(LogflumeError, match="ZeroDivisionError: a fault"):
        wait_until(lambda: consumer.poll(timeout_s=0.1) and False)
    consumer.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_chunks_and_objects_by_key_land_on_the_same_partitions(log: Log, topic: str, compression: str) -> None:
    log.admin().create_topic(topic, partitions=5)
    keys: list[bytes | None] = [b"key-%d" % (i % 97) for i in range(3000)]
    values: list[bytes | None] = [b"value-%d" % i for i in range(3000)]
    producer = log.producer(compression=compression, batch_size=8000)
    for key, value in zip(keys, values, strict=True):
        producer.send(topic, value, key=key, timestamp_ms=7)
    producer.flush()
    assert producer.send_chunk(topic, Chunk.from_columns(topic, keys, values, [7] * 3000)).result(WAIT_S) == 3000
    for records in read_all(log, topic).values():
        half = len(records) // 2
        assert [(r.key, r.value) for r in records[:half]] == [(r.key, r.value) for r in records[half:]]
        order = [values.index(r.value) for r in records[:half]]
        assert order == sorted(order)


@pytest.mark.parametrize("first", ["assigned", "out of range"])
def test_a_seek_stands_while_a_position_is_looked_for(log: Log, topic: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log.admin().create_topic(topic, partitions=1)
    producer, where = log.producer(), TopicPartition(topic, 0)
    for n in range(5):
        producer.send(topic, b"%d" % n)
    producer.flush()
    start = Fetcher._start
    sought = threading.Event()

    def late(fetcher: Fetcher, coroutine: Coroutine[Any, Any, None]) -> None:
        """The application seeks before the search has begun."""
        if coroutine.__name__ == {"assigned": "_initialise", "out of range": "_out_of_range"}[first] and not sought.is_set():
            consumer.seek(where, 3)
            sought.set()
        start(fetcher, coroutine)

    monkeypatch.setattr(Fetcher, "_start", late)
    consumer = log.consumer()
    consumer.assign([where])
    if first == "out of range":
        consumer.position(where)
        consumer.seek(where, 99)
    assert sought.wait(60)
    chunks: list[Chunk] = []
    while not chunks:
        chunks = consumer.poll(timeout_s=1)
    assert [record.offset for chunk in chunks for record in chunk.records()] == [3, 4]
    consumer.close()
    producer.close()


def test_positions_seek_pause_and_time(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = log.producer()
    for i in range(100):
        producer.send(topic, b"%d" % i, partition=i % 2, timestamp_ms=1000 + i)
    producer.flush()
    consumer = log.consumer()
    consumer.assign([first, second])
    consumer.pause([second])
    assert {r.partition for r in read(consumer, 50)} == {0}
    assert consumer.lag(first) == 0
    consumer.seek(first, 48)
    assert [r.offset for r in read(consumer, 2)] == [48, 49]
    consumer.resume([second])
    assert [r.offset for r in read(consumer, 50)] == list(range(50))
    times = log.admin().offsets_for_time({first: 1051, second: 5000})
    assert times == {first: 26, second: None}
    assert consumer.position(first) == 50
    with pytest.raises(UnknownName, match="unknown assigned partition"):
        consumer.seek(TopicPartition(topic, 7), 0)


def test_what_was_fetched_of_a_paused_partition_is_kept(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2)
    producer = log.producer()
    for i in range(20):
        producer.send(topic, b"%d" % i, partition=i % 2)
    producer.flush()
    partitions = [TopicPartition(topic, p) for p in range(2)]
    consumer = log.consumer()
    consumer.assign(partitions)
    seen: list[tuple[int, int]] = []
    for turn in range(40):
        consumer.pause([partitions[turn % 2]])
        consumer.resume([partitions[1 - turn % 2]])
        for chunk in consumer.poll(timeout_s=0.2, max_records=1):
            assert chunk.partition == 1 - turn % 2
            seen += [(record.partition, record.offset) for record in chunk.records()]
    assert sorted(seen) == [(p, offset) for p in range(2) for offset in range(10)]


def test_a_poll_returns_no_more_than_was_asked_for(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer = log.producer()
    for i in range(1000):
        producer.send(topic, b"%d" % i)
    producer.flush()
    consumer = log.consumer()
    consumer.assign([TopicPartition(topic, 0)])
    seen: list[bytes | None] = []
    while len(seen) < 1000:
        chunks = consumer.poll(timeout_s=WAIT_S, max_records=300)
        assert 0 < sum(map(len, chunks)) <= 300
        assert consumer.position(TopicPartition(topic, 0)) == len(seen) + sum(map(len, chunks))
        seen += [value for chunk in chunks for value in chunk.values()]
    assert seen == [b"%d" % i for i in range(1000)]


def test_a_backlog_of_one_partition_holds_up_no_other(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=2)
    long, short = (TopicPartition(topic, p) for p in range(2))
    producer = log.producer()
    for _ in range(3000):
        producer.send(topic, b"x" * 1000, partition=0)
    producer.flush()
    consumer = log.consumer()
    consumer.assign([long, short])
    assert [len(chunk) for chunk in consumer.poll(timeout_s=WAIT_S, max_records=1) if len(chunk)] == [1]
    producer.send(topic, b"short", partition=1).result(WAIT_S)
    wait_until(lambda: consumer.lag(short) == 1)
    seen = [chunk.partition for _ in range(4) for chunk in consumer.poll(timeout_s=WAIT_S, max_records=10)]
    assert 1 in seen
    consumer.close()


def test_batches_beyond_the_brokers_limit_are_split_and_records_beyond_it_refused(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, configs={"max.message.bytes": "20000"})
    producer = log.producer(batch_size=1_000_000)
    values: list[bytes | None] = [b"%d" % i + bytes(1000) for i in range(200)]
    futures = [producer.send(topic, value) for value in values]
    sent = producer.send_chunk(topic, Chunk.from_columns(topic, [None] * 200, values, [1] * 200))
    too_large = producer.send(topic, bytes(30_000))
    assert [future.result(WAIT_S).offset for future in futures] == list(range(200))
    assert sent.result(WAIT_S) == 200
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        too_large.result(WAIT_S)
    producer.send(topic, b"after").result(WAIT_S)
    assert [r.value for r in read_all(log, topic)[0]] == [*values, *values, b"after"]


def test_records_larger_than_a_fetch_are_read(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, configs={"max.message.bytes": "9000000"})
    producer = log.producer()
    sizes = [10, 3_000_000, 20, 8_000_000, 30]
    for size in sizes:
        producer.send(topic, bytes(size))
    producer.flush()
    consumer = log.consumer(fetch_max_bytes=100_000)
    consumer.assign([TopicPartition(topic, 0)])
    assert [len(r.value or b"") for r in read(consumer, 5)] == sizes


def test_out_of_range_is_handled_as_asked_and_reported(log: Log, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    log.admin().create_topic(topic)
    partition = TopicPartition(topic, 0)
    producer = log.producer()
    for i in range(10):
        producer.send(topic, b"%d" % i).result(WAIT_S)
    log.admin().delete_records({partition: 6})
    assert log.admin().start_offsets([partition]) == {partition: 6}
    consumer = log.consumer()
    consumer.assign([partition])
    consumer.seek(partition, 2)
    assert [r.offset for r in read(consumer, 4)] == [6, 7, 8, 9]
    assert "offset 2 is out of range, the log starts at 6; going on at 6" in caplog.text
    strict = log.consumer(offset_reset="none")
    strict.assign([partition])
    strict.seek(partition, 2)
    with pytest.raises(OffsetOutOfRange, match="offset 2 is out of range"):
        read(strict, 1)


def test_latest_starts_at_the_end(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer = log.producer()
    producer.send(topic, b"old").result(WAIT_S)
    consumer = log.consumer(offset_reset="latest")
    consumer.assign([TopicPartition(topic, 0)])
    assert consumer.position(TopicPartition(topic, 0)) == 1
    producer.send(topic, b"new").result(WAIT_S)
    assert [r.value for r in read(consumer, 1)] == [b"new"]


def test_wakeup_ends_a_waiting_poll(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    consumer = log.consumer()
    consumer.assign([TopicPartition(topic, 0)])
    consumer.position(TopicPartition(topic, 0))
    answers: list[list[Chunk]] = []
    thread = threading.Thread(target=lambda: answers.append(consumer.poll(timeout_s=WAIT_S * 10)))
    thread.start()
    consumer.wakeup()
    thread.join(WAIT_S)
    assert answers == [[]]


def test_admin_of_topics(log: Log, topic: str) -> None:
    admin = log.admin()
    described = admin.ensure_topic(topic, partitions=3, configs={"cleanup.policy": "compact"})
    assert (described.name, described.partitions) == (topic, 3)
    assert admin.changed_topic_configs(topic) == {"cleanup.policy": "compact"}
    assert admin.ensure_topic(topic, partitions=9) == described
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic(topic)
    admin.create_partitions(topic, 4)
    assert admin.describe_topics([topic])[topic].partitions == 4
    admin.alter_topic_configs(topic, {"retention.ms": "1000", "cleanup.policy": None})
    configs = admin.topic_configs(topic)
    assert (configs["retention.ms"], configs["cleanup.policy"]) == ("1000", "delete")
    assert topic in admin.list_topics()
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.list_topics())
    with pytest.raises(UnknownName, match=topic):
        admin.describe_topics([topic])
    with pytest.raises(UnknownName):
        admin.delete_topic(topic)


def test_admin_of_groups(log: Log, topic: str) -> None:
    admin = log.admin()
    admin.create_topic(topic)
    group = f"group-of-{topic}"
    partition = TopicPartition(topic, 0)
    admin.set_group_offsets(group, {partition: OffsetAndMetadata(0, "begin")})
    assert admin.group_offsets(group) == {partition: OffsetAndMetadata(0, "begin")}
    assert group in admin.list_groups()
    log.producer().send(topic, b"x").result(WAIT_S)
    consumer = log.consumer(group_id=group)
    consumer.subscribe([topic])
    assert len(read(consumer, 1)) == 1
    described = admin.describe_group(group)
    assert (described.state, described.members[0].assignment) == ("Stable", (partition,))
    with pytest.raises(InvalidInput, match="only while it has no members"):
        admin.set_group_offsets(group, {partition: OffsetAndMetadata(0)})
    consumer.close()
    wait_until(lambda: admin.describe_group(group).state == "Empty")
    admin.delete_group(group)
    assert group not in admin.list_groups()
    assert admin.describe_group(group).state == "Dead"


def test_any_request_can_be_sent(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    response = log.admin().request("Metadata", 9, topics=None)
    assert topic in {t.name for t in response.topics}
    with pytest.raises(UnknownName, match="did you mean 'Metadata'"):
        log.admin().request("Metadta")


def test_a_log_shows_where_it_is_and_whether_it_is_closed(server: ServerProcess) -> None:
    opened = connect(server.address)
    assert repr(opened) == f"<Log at {server.address}>"
    opened.close()
    assert repr(opened) == f"<Log at {server.address}, closed>"


def test_what_is_closed_stays_closed(log: Log, topic: str) -> None:
    log.admin().create_topic(topic)
    producer, consumer = log.producer(), log.consumer(group_id="g")
    last = producer.send(topic, b"queued")
    producer.close()
    producer.close()
    consumer.close()
    assert last.result(timeout=0).offset == 0
    with pytest.raises(ClientClosed):
        producer.send(topic, b"x")
    with pytest.raises(ClientClosed):
        consumer.poll()
    log.close()
    with pytest.raises(ClientClosed):
        log.producer()


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_closing_ends_what_another_thread_waits_for(fate: signal.Signals, tmp_path: Path) -> None:
    """The broker is gone, or answers nothing: the call ends with the client, not with its own time-out a minute later."""
    broker, ended = ServerProcess(str(tmp_path / "data")), list[LogflumeError]()
    with connect(broker.address) as log:
        log.admin().create_topic("t")
        consumer, producer = log.consumer(group_id="g"), log.producer()
        consumer.assign([TopicPartition("t", 0)])
        consumer.commit({TopicPartition("t", 0): OffsetAndMetadata(0)})
        assert broker.process is not None
        broker.process.send_signal(fate)

        def commit() -> None:
            try:
                consumer.commit({TopicPartition("t", 0): OffsetAndMetadata(1)})
            except LogflumeError as error:
                ended.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        sent = producer.send("t", b"x")
        time.sleep(0.3)
        assert thread.is_alive()
        consumer.close(timeout_s=0.1)
        producer.close(timeout_s=0.1)
        thread.join(5.0)
        assert [type(error) for error in ended] == [ClientClosed]
        with pytest.raises(ClientClosed):
            sent.result(0)
    broker.kill()


def test_options_that_cannot_be_are_refused(log: Log) -> None:
    with pytest.raises(UnknownName, match="did you mean 'lz4'"):
        log.producer(compression="lz")
    with pytest.raises(UnknownName, match="did you mean 'earliest'"):
        log.consumer(offset_reset="earlist")
    with pytest.raises(UnknownName, match="did you mean 'range'"):
        log.consumer(group_id="g", assignment_strategies=["rang"])
    with pytest.raises(InvalidInput, match="needs acks=-1"):
        log.producer(transactional_id="x", acks=1)
    with pytest.raises(InvalidInput, match="needs a group"):
        log.consumer().subscribe(["t"])
    with pytest.raises(InvalidInput, match="has no transactional id"):
        log.producer().begin_transaction()


def test_a_directory_opened_twice_in_a_process_is_one_log(tmp_path: Path) -> None:
    first, second = connect(tmp_path), connect(str(tmp_path / ".." / tmp_path.name))
    first.admin().create_topic("t")
    first.close()
    second.producer().send("t", b"x").result(WAIT_S)
    assert [r.value for r in read_all(second, "t")[0]] == [b"x"]
    second.close()
    with connect(tmp_path) as again:
        assert [r.value for r in read_all(again, "t")[0]] == [b"x"]


def test_where_a_log_is_can_be_said_again_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with connect("./data") as log:
        log.admin().create_topic("t")
        monkeypatch.chdir(tmp_path / "elsewhere")
        with connect(log.where) as again:
            assert again.admin().list_topics() == ["t"]


def test_a_joined_directory_is_the_holders_log(server: ServerProcess, topic: str) -> None:
    with connect(server.address) as remote, connect(Path(server.data_dir)) as joined:
        remote.admin().create_topic(topic)
        joined.producer().send(topic, b"x").result(WAIT_S)
        assert [r.value for r in read_all(remote, topic)[0]] == [b"x"]
        assert joined.where == server.data_dir


def test_another_process_joins_the_log_of_this_one(tmp_path: Path) -> None:
    program = """
import sys
from logflume.log import connect
with connect(sys.argv[1]) as log:
    log.producer().send("t", b"from there").result(20)
"""
    with connect(tmp_path) as log:
        log.admin().create_topic("t")
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=WAIT_S)
        assert [r.value for r in read_all(log, "t")[0]] == [b"from there"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("localhost", "did you mean 'localhost:9092' or './localhost'"),
        ("localhost:99999", "the port is a number up to 65535"),
        ("localhost:port", "the port is a number up to 65535"),
        ("", "expected host:port"),
    ],
)
def test_an_address_that_is_none_is_refused(where: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        connect(where)


def test_wrong_places_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InvalidInput, match="is a file, expected a data directory"):
        connect(file)
    with pytest.raises(TransportError, match="the host name is not known"):
        connect("no-such-host.invalid:9092")
    with pytest.raises(TransportError, match="cannot connect to unix:"):
        connect(f"unix:{tmp_path}/none.sock")


def test_who_is_asked_for_again_does_not_wait_for_long_questions_about_the_others(log: Log, topic: str) -> None:
    log.admin().create_topic(topic, partitions=3)
    log.producer().send(topic, b"late", partition=2).result(WAIT_S)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    with log.consumer(offset_reset="earliest", fetch_max_wait_ms=25_000) as consumer:
        consumer.assign(partitions)
        consumer.pause(partitions[1:])
        for partition in partitions[1:]:  # each channel is taken by a question in vain, before the last is asked for
            assert not list(consumer.poll(timeout_s=0.6))
            consumer.resume([partition])
        deadline_s = time.monotonic() + 10
        while not (found := [value for chunk in consumer.poll(timeout_s=1) for value in chunk.values()]):
            assert time.monotonic() < deadline_s
    assert found == [b"late"]


LEFT_OPEN = """
import sys
from logflume.log import connect

def records(where):
    with connect(where) as log:
        log.admin().create_topic("left-open")
        producer, consumer = log.producer(), log.consumer()
        producer.send("left-open", b"v")
        producer.flush()
        yield consumer

left = records(sys.argv[1])
next(left)
print("ends")
"""
"""Python closes the generator as it ends, when its threads are gone."""


def test_a_process_ends_that_leaves_a_log_in_a_generator(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path / "server"))
    try:
        for where in (server.address, str(tmp_path / "log")):
            done = subprocess.run(
                [sys.executable, "-c", LEFT_OPEN, where], capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
            with connect(where) as log:
                assert log.admin().end_offsets([TopicPartition("left-open", 0)]) == {TopicPartition("left-open", 0): 1}
    finally:
        server.stop()


CLIENTS_LEFT_OPEN = """
import sys
from logflume.log import connect

def clients(log):
    with log.producer() as producer, log.consumer() as consumer:
        producer.send("left-open", b"v")
        yield consumer

log = connect(sys.argv[1])
log.admin().create_topic("left-open")
left = clients(log)
next(left)
print("ends")
"""


def test_a_process_ends_at_once_that_leaves_clients_in_a_generator(server: ServerProcess) -> None:
    command = [sys.executable, "-c", CLIENTS_LEFT_OPEN, server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
