"""Apache Kafka's own segment dump reads our files: data of all codecs, markers, committed offsets, transactions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logflume.log import GroupMetadata, Log, OffsetAndMetadata, TopicPartition, connect

from . import _kafka_java as kafka
from ._server_process import ServerProcess

pytestmark = pytest.mark.skipif(bool(kafka.missing()), reason=kafka.missing() or "-")

DUMP = f"{kafka.TOOLS}.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the data directory of a broker that was stopped, after everything below had been written."""
    folder = tmp_path_factory.mktemp("dumped") / "data"
    server = ServerProcess(str(folder))
    with connect(server.address) as log:
        write(log)
    assert server.stop() == 0
    return folder


def write(log: Log) -> None:
    """Write ten records with each codec, then a committed and an aborted transaction with offsets."""
    log.admin().create_topic("dumped", partitions=1)
    for codec in CODECS:
        producer = log.producer(compression=codec)
        for n in range(10):
            producer.send("dumped", f"{codec}-{n}".encode() * 9, key=f"k{n}".encode(), timestamp_ms=1000 + n)
        producer.flush()
        producer.close()
    producer = log.producer(transactional_id="dumper")
    producer.init_transactions()
    for is_commit in (True, False):
        producer.begin_transaction()
        producer.send("dumped", b"in a transaction")
        producer.send_offsets({TopicPartition("dumped", 0): OffsetAndMetadata(7)}, GroupMetadata("readers", -1, ""))
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


def segments(data: Path, topic: str) -> str:
    """Return the segment files of a topic that hold something, as the dump takes them."""
    found = [str(file) for file in sorted(data.glob(f"**/{topic}-*/*.log")) if file.stat().st_size]
    assert found
    return ",".join(found)


def test_it_reads_records_of_every_codec_and_markers(data: Path) -> None:
    dumped = kafka.run(DUMP, "--deep-iteration", "--print-data-log", "--files", segments(data, "dumped"))
    batches = re.findall(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+).* compresscodec: (\w+) crc: \d+ isvalid: (\w+)", dumped
    )
    assert all(is_valid == "true" for *_, is_valid in batches)
    assert {codec for *_, codec, _ in batches} == set(CODECS)
    records = re.findall(r"\| offset: (\d+) .* key: (\S+) payload: (\S+)", dumped)
    assert [(int(at), key, value) for at, key, value in records[:50]] == [
        (10 * c + n, f"k{n}", f"{codec}-{n}" * 9) for c, codec in enumerate(CODECS) for n in range(10)
    ]
    assert re.findall(r"\| offset: (\d+) .* endTxnMarker: (\w+)", dumped) == [("51", "COMMIT"), ("53", "ABORT")]


def test_it_reads_committed_offsets(data: Path) -> None:
    dumped = kafka.run(DUMP, "--offsets-decoder", "--files", segments(data, "__consumer_offsets"))
    assert '"group":"readers","topic":"dumped","partition":0' in dumped
    assert dumped.count('"offset":7,') == 2
    assert re.findall(r"endTxnMarker: (\w+)", dumped) == ["COMMIT", "ABORT"]


def test_it_reads_the_state_of_transactions(data: Path) -> None:
    dumped = kafka.run(DUMP, "--transaction-log-decoder", "--files", segments(data, "__transaction_state"))
    states = re.findall(r'"transactionalId":"dumper".*?"transactionStatus":(\d)', dumped)
    assert states[-1] == "5", "complete abort"
    assert "4" in states, "complete commit"


def test_it_finds_the_indexes_sane_and_reads_producer_snapshots(data: Path) -> None:
    indexes = [str(file) for file in data.glob("**/dumped-0/*.index")] + [
        str(file) for file in data.glob("**/dumped-0/*.timeindex")
    ]
    checked = kafka.run(DUMP, "--index-sanity-check", "--files", ",".join(indexes))
    assert checked.count("passed sanity check") == len(indexes) >= 2
    snapshots = [str(file) for file in data.glob("**/dumped-0/*.snapshot")]
    assert "producerId:" in kafka.run(DUMP, "--files", ",".join(snapshots))
