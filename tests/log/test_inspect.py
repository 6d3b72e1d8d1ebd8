"""Dumps of every kind of file, and damage that is found wherever a byte is wrong."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import GroupMetadata, OffsetAndMetadata, TopicPartition, connect
from logflume.log.batch import encode_batch
from logflume.log.broker.groups.epoch_records import EpochKey, GroupKind, Role, encode_epoch_key
from logflume.log.broker.share.state_records import ShareKey, encode_state_key
from logflume.log.errors import InvalidInput
from logflume.log.inspect import dump_file, file_kind, verify_path
from logflume.log.inspect.journals import DECODERS

FIRST = "0" * 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed data directory with records, an aborted and a committed transaction, and a group's offsets."""
    path = tmp_path_factory.mktemp("inspect") / "data"
    with connect(path) as log:
        log.admin().create_topic("t", configs={"index.interval.bytes": "100"})
        plain = log.producer()
        plain.send("t", b"plain", key=b"k", headers=[("h", b"v")]).result(30)
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        for is_commit in (False, True):
            producer.begin_transaction()
            for index in range(3):
                producer.send("t", b"%d" % index).result(30)
            producer.send_offsets({TopicPartition("t", 0): OffsetAndMetadata(7, "why")}, GroupMetadata("crew", -1, ""))
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    return path


def entries(path: Path, **options: Any) -> list[dict[str, object]]:
    found = list(dump_file(path, **options))
    json.dumps(found)
    return found


def of_kind(found: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [entry for entry in found if entry["kind"] == kind]


def test_a_segment_is_told_batch_by_batch_and_record_by_record(data: Path) -> None:
    path = data / "t-0" / f"{FIRST}.log"
    batches = of_kind(entries(path), "batch")
    assert [entry["marker"].split(",")[0] for entry in batches if entry["is_control"]] == ["abort", "commit"]  # type: ignore[attr-defined]
    assert sum(int(str(entry["size_bytes"])) for entry in batches) == path.stat().st_size
    assert sum(entry["is_transactional"] is True for entry in batches) >= 4
    records = of_kind(entries(path, has_records=True), "record")
    assert (records[0]["offset"], records[0]["key"], records[0]["value"]) == (0, "k", "plain")
    assert records[0]["headers"] == [["h", "v"]]
    assert [record["value"] for record in records[1:]] == ["0", "1", "2"] * 2


def test_the_files_beside_it_are_told(data: Path) -> None:
    directory = data / "t-0"
    (aborted,) = entries(directory / f"{FIRST}.txnindex")
    assert (aborted["first_offset"], aborted["last_offset"]) == (1, 4)
    for suffix in ("index", "timeindex"):
        assert all(int(str(entry["offset"])) <= 9 for entry in entries(directory / f"{FIRST}.{suffix}"))
    (snapshot,) = directory.glob("*.snapshot")
    head, *producers = entries(snapshot)
    assert head["entries"] == len(producers) > 0
    assert entries(directory / "leader-epoch-checkpoint")[2]["text"] == "0 0"
    assert any("topic_id" in str(entry["text"]) for entry in entries(directory / "partition.metadata"))


def test_the_coordinators_records_are_told_in_words(data: Path) -> None:
    offsets = [
        record
        for path in data.glob(f"__consumer_offsets-*/{FIRST}.log")
        for record in of_kind(entries(path, has_records=True), "record")
    ]
    commit = next(record for record in offsets if "topic" in record["key"])  # type: ignore[operator]
    assert commit["key"]["group_id"] == "crew"  # type: ignore[index]
    assert (commit["value"]["offset"], commit["value"]["metadata"]) == (7, "why")  # type: ignore[index]
    states = [
        record["value"]["state"]  # type: ignore[index]
        for path in data.glob(f"__transaction_state-*/{FIRST}.log")
        for record in of_kind(entries(path, has_records=True), "record")
    ]
    assert "PREPARE_ABORT" in states
    assert states[-1] == "COMPLETE_COMMIT"


def test_records_of_every_kind_of_group_are_told_in_words() -> None:
    for kind in (GroupKind.CONSUMER, GroupKind.SHARE, GroupKind.STREAMS):
        key, value = DECODERS["offsets"](encode_epoch_key(EpochKey(kind, Role.MEMBER, "queue", "m1")), None)
        assert key == {"kind": kind.name, "role": "MEMBER", "group_id": "queue", "member_id": "m1"}
        assert value is None
    state = encode_state_key(ShareKey("queue", bytes(range(16)), 3))
    key, _ = DECODERS["share"](state, None)
    assert key == {"group_id": "queue", "topic_id": bytes(range(16)).hex(), "partition": 3}
    for decoder in DECODERS.values():
        assert decoder(b"\x7f\xffnonsense", b"\xff") == ("\x7f\\xffnonsense", "\\xff")
        assert decoder(None, None) == (None, None)


def test_a_good_directory_is_good(data: Path) -> None:
    findings = list(verify_path(data))
    assert len(findings) > 10
    assert [finding for finding in findings if finding.problem] == []
    assert {Path(finding.path).suffix for finding in findings} >= {".log", ".index", ".txnindex", ".snapshot"}


@pytest.mark.parametrize("name", [f"{FIRST}.log", "snapshot", "logflume.checkpoint"])
def test_any_flipped_byte_is_found(data: Path, tmp_path: Path, name: str) -> None:
    source = next((data / "t-0").glob("*.snapshot")) if name == "snapshot" else data / "t-0" / name
    good = source.read_bytes()
    copy = tmp_path / source.name
    found = list(dump_file(source))
    epochs = {position for entry in found for position in _epoch_bytes(entry)}
    # Damage to the last batch of the last segment cannot be told from a write that a crash tore.
    end = int(str(found[-1]["position"])) if name.endswith(".log") else len(good)
    for position in set(range(end)) - epochs:
        copy.write_bytes(good[:position] + bytes([good[position] ^ 0x55]) + good[position + 1 :])
        (finding,) = verify_path(tmp_path)
        assert finding.problem, position


def _epoch_bytes(entry: dict[str, object]) -> range:
    """Bytes of a batch that no checksum covers and nothing contradicts: its leader epoch."""
    position = int(str(entry.get("position", 0)))
    return range(position + 12, position + 16) if entry["kind"] == "batch" else range(0)


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_a_cut_or_unordered_index_is_found(tmp_path: Path, suffix: str) -> None:
    layout = {"index": ">ii", "timeindex": ">qi", "txnindex": ">hqqqq"}[suffix]
    path = tmp_path / f"{FIRST}.{suffix}"
    one = struct.pack(layout, *range(layout.count("i") + layout.count("q") + layout.count("h")))
    path.write_bytes(one + one[:3])
    assert "at the end" in str(next(iter(verify_path(path))).problem)
    if suffix != "txnindex":
        path.write_bytes(struct.pack(layout, 9, 9) + struct.pack(layout, 3, 3))
        assert "to rise" in str(next(iter(verify_path(path))).problem)
        path.write_bytes(struct.pack(layout, 3, 3) + bytes(struct.calcsize(layout) * 5))
        assert next(iter(verify_path(path))).problem is None, "room that Apache Kafka reserves is not damage"


def test_a_torn_end_is_told_by_dump_and_is_no_damage_to_a_log_in_use(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batch = encode_batch([None], [b"v" * 100], [1])
    (directory / f"{FIRST}.log").write_bytes(bytes(batch) + bytes(batch[:50]))
    assert [entry["kind"] for entry in dump_file(directory / f"{FIRST}.log")] == ["batch", "damage"]
    assert [finding.problem for finding in verify_path(directory)] == [None]


@settings(deadline=None)
@given(
    content=st.binary(max_size=400),
    name=st.sampled_from(
        [f"{FIRST}.{s}" for s in ("log", "index", "timeindex", "txnindex", "snapshot")] + ["logflume.checkpoint"]
    ),
    has_good_start=st.booleans(),
)
def test_any_bytes_are_told_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, has_good_start: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes((bytes(encode_batch([b"k"], [b"v"], [1])) if has_good_start else b"") + content)
    found = list(dump_file(path, has_records=True))
    json.dumps(found, default=str)
    assert all(entry["kind"] != "damage" for entry in found[:-1])
    list(verify_path(path))


def test_what_is_no_file_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert file_kind(tmp_path / "notes.txt") is None
    for call in (
        lambda: list(dump_file(tmp_path / "notes.txt")),
        lambda: list(dump_file(tmp_path / f"{FIRST}.log")),
        lambda: list(verify_path(tmp_path)),
        lambda: list(verify_path(tmp_path / "none")),
    ):
        with pytest.raises(InvalidInput):
            call()
