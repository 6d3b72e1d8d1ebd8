"""Names and directories of partitions: any legal name works, whatever is in the directory, and what is lost is told."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.batch import encode_batch
from logflume.log.broker.state.troubles import FIRST_PAUSE_MS, MAX_PAUSE_MS, Troubles
from logflume.log.errors import CorruptLog, StorageError
from logflume.log.protocol import ErrorCode, messages
from logflume.log.server.shell import BrokerShell
from logflume.log.storage import PartitionLog
from logflume.log.storage.testing.disk import PowerCut

from ._simulated_broker import SimulatedBroker, made, make_topic
from ._wire import batch, fetch_request

names = st.text("abz019._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
long_names = st.integers(200, 249).map(lambda size: "n" * size)


def delete(broker: SimulatedBroker, name: str) -> int:
    code: int = broker.call(messages.DeleteTopicsRequest(topic_names=[name]), 5).responses[0].error_code
    return code


def restart(broker: SimulatedBroker) -> None:
    broker.close()
    broker.start()


def mend(broker: SimulatedBroker) -> None:
    """Do what the shell does with partitions in trouble, in this thread."""
    for key in broker.core.mendable():
        topic_id = broker.core.cluster.topics[key[0]].topic_id
        outcome: PartitionLog | StorageError
        try:
            outcome = broker.core.reopener(key)()
        except StorageError as error:
            outcome = error
        broker.core.mended(key, topic_id, outcome)


@settings(max_examples=60, deadline=None)
@given(st.one_of(names, long_names))
def test_any_legal_name_is_created_filled_deleted_and_made_again(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    broker = SimulatedBroker(tmp_path_factory.mktemp("data"))
    for value in (b"first", b"second"):
        assert broker.create(name, 2).error_code == 0
        assert [answer.error_code for answer in broker.produce(name, batch(value), batch(value))] == [0, 0]
        restart(broker)
        assert broker.values(name, 1) == [value]
        assert delete(broker, name) == 0
        assert broker.core.data_dir.partitions() == {}
        restart(broker)
        assert name not in broker.core.cluster.topics
    broker.close()


def test_a_deletion_that_the_disk_refuses_stops_no_start_and_no_new_topic(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t", 2)
    broker.produce("t", batch(b"old"), batch(b"old"))
    broker.disk.fail("rename", errno.EACCES, path="/t-")
    assert delete(broker, "t") == ErrorCode.KAFKA_STORAGE_ERROR
    broker.close()
    broker.disk.fail("rename", errno.EACCES, path="/t-")
    broker.start()
    assert broker.create("t", 1).error_code == 0
    assert broker.produce("t", batch(b"new"))[0].base_offset == 0
    restart(broker)
    assert broker.values("t", 0) == [b"new"]
    assert set(broker.core.data_dir.partitions()) == {("t", 0)}
    broker.close()


@pytest.mark.parametrize(
    "name", ["backup-2024", "t-0-delete", "x.0123456789abcdef0123456789abcdef-delete0", "lost+found", "t-007"]
)
def test_a_broker_starts_beside_a_directory_that_is_none_of_its_own(tmp_path: Path, name: str) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t", 1)
    broker.produce("t", batch(b"kept"))
    broker.close()
    broker.disk.make_dir(f"{tmp_path}/{name}")
    broker.disk.open(f"{tmp_path}/{name}/notes.txt", create=True).write(0, [b"mine"])
    broker.start()
    assert broker.values("t", 0) == [b"kept"]
    assert broker.disk.read_file(f"{tmp_path}/{name}/notes.txt") == b"mine"
    broker.close()


def test_a_log_with_records_that_nobody_knows_still_stops_the_start(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t", 1)
    broker.produce("t", batch(b"kept"))
    broker.close()
    broker.disk.rename(f"{tmp_path}/t-0", f"{tmp_path}/other-0")
    with pytest.raises(StorageError, match=r"other-0 is the log of a partition that cluster\.json does not know"):
        broker.start()


@pytest.mark.parametrize("is_emptied", [False, True], ids=["removed", "emptied"])
def test_a_missing_partition_is_offline_and_told_until_it_is_back(
    tmp_path: Path, is_emptied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t", 2)
    broker.produce("t", batch(b"zero"), batch(b"one"))
    broker.close()
    whole = broker.disk.snapshot()
    broker.disk.remove_tree(f"{tmp_path}/t-1")
    if is_emptied:
        broker.disk.make_dir(f"{tmp_path}/t-1")
    broker.start()
    found = "no segment in it" if is_emptied else "no such directory"
    assert f"t-1: expected the log of a partition, found {found}: its records are missing" in caplog.text
    first, second = broker.produce("t", batch(b"more"), batch(b"refused"))
    assert (first.error_code, second.error_code) == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    (answer,) = broker.call(fetch_request("t", {1: 0}), 12).responses[0].partitions
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    mend(broker)
    assert broker.core.partition("t", 1) is None, "it is not tried again at once"
    for path, content in whole.items():
        if f"{path}/".startswith(f"{tmp_path}/t-1/"):
            if content is None:
                broker.disk.make_dir(path)
            else:
                broker.disk.open(path, create=True).write(0, [content])
    broker.time.advance(FIRST_PAUSE_MS)
    mend(broker)
    assert broker.values("t", 1) == [b"one"]
    assert not broker.core.troubles.by_partition
    assert broker.produce("t", batch(b"x"), batch(b"two"))[1].base_offset == 1
    broker.close()


def test_lost_records_are_given_up_by_word_or_with_their_topic_only(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    for name in ("anew", "deleted"):
        broker.create(name, 1)
        broker.produce(name, batch(b"lost"))
    broker.close()
    for name in ("anew", "deleted"):
        broker.disk.remove_tree(f"{tmp_path}/{name}-0")
    broker.start()
    assert delete(broker, "deleted") == 0
    broker.disk.make_dir(f"{tmp_path}/anew-0")
    broker.disk.open(f"{tmp_path}/anew-0/begin-empty", create=True)
    broker.time.advance(FIRST_PAUSE_MS)
    mend(broker)
    assert broker.produce("anew", batch(b"first"))[0].base_offset == 0
    assert broker.create("deleted", 1).error_code == 0
    restart(broker)
    assert (broker.values("anew", 0), broker.values("deleted", 0)) == ([b"first"], [])
    broker.close()


def test_a_lost_internal_partition_stops_the_start(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    make_topic(broker.core, "__consumer_offsets", 2)
    broker.close()
    broker.disk.remove_tree(f"{tmp_path}/__consumer_offsets-1")
    with pytest.raises(CorruptLog, match="__consumer_offsets-1: expected the log of a partition"):
        broker.start()


def create_many(broker: SimulatedBroker) -> None:
    for number in range(100):
        broker.create(f"t{number}", 3)


@pytest.mark.parametrize("seed", range(20))
def test_a_creation_cut_short_leaves_nothing_and_is_not_taken_for_a_loss(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker = SimulatedBroker(tmp_path)
    broker.create("kept", 1)
    broker.produce("kept", batch(b"kept"))
    broker.disk.cut_at_step = broker.disk.steps + rng.randrange(1, 40)
    with pytest.raises(PowerCut):
        create_many(broker)
    broker.power_cut(rng)
    assert not broker.core.troubles.by_partition
    topics = broker.core.cluster.topics
    assert broker.core.data_dir.partitions().keys() == {
        (name, index) for name, topic in topics.items() for index in range(topic.partition_count)
    }
    broker.close()


def test_a_failed_partition_says_so_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = SimulatedBroker(tmp_path)
    broker.create("t", 1, **{"segment.bytes": "200"})
    assert broker.produce("t", batch(bytes(100)))[0].error_code == 0
    broker.disk.fail("create", errno.EACCES)
    assert broker.produce("t", batch(bytes(100)))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "t-0 takes no appends until it is opened again" in caplog.text
    assert broker.produce("t", batch(b"refused"))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    mend(broker)
    assert list(broker.core.troubles.by_partition) == [("t", 0)]
    broker.time.advance(FIRST_PAUSE_MS)
    mend(broker)
    assert broker.produce("t", batch(b"taken"))[0].base_offset == 1
    assert broker.values("t", 0) == [bytes(100), b"taken"]
    broker.close()


def test_pauses_grow_and_only_news_is_told() -> None:
    troubles = Troubles()
    now_ms, pauses = 0, []
    assert troubles.note(("t", 0), "gone", now_ms)
    for _ in range(10):
        step_ms = 0
        while not troubles.due(now_ms + step_ms):
            step_ms += FIRST_PAUSE_MS
        pauses.append(step_ms)
        now_ms += step_ms
        assert not troubles.note(("t", 0), "gone", now_ms)
    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert pauses[-1] == MAX_PAUSE_MS
    assert troubles.note(("t", 0), "damaged", now_ms)


def test_a_running_broker_takes_a_partition_back_after_a_file_size_limit(tmp_path: Path) -> None:
    async def main() -> None:
        shell = await BrokerShell.start(str(tmp_path / "data"), has_unix_socket=False)
        await made(make_topic(shell.core, "t"))
        partition = shell.core.partition("t", 0)
        assert partition is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        data = encode_batch([None], [bytes(60_000)], [0])
        try:
            partition.log.append(data, leader_epoch=0, now_ms=0)
            with pytest.raises(StorageError, match="File too large"):
                partition.log.append(data, leader_epoch=0, now_ms=0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert shell._readiness().status == 200
        shell._mend()
        assert shell._readiness().status == 503
        shell.core.troubles.by_partition["t", 0].next_try_ms = 0
        shell._mend()
        assert shell._mending is not None
        await shell._mending
        assert shell._readiness().status == 200
        assert partition.log.append(data, leader_epoch=0, now_ms=0).first_offset == 0, "what was not acknowledged is gone"
        await shell.stop()

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGXFSZ, before)
    assert os.path.isdir(tmp_path / "data" / "t-0")
