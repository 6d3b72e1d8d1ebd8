"""The data directory: lock, identity, partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logflume.log import DataDirLocked, StorageError
from logflume.log.batch import encode_batch
from logflume.log.storage import DataDir, Holder, LogConfig, OsDisk

HOLD = """
import sys
from logflume.log.storage import DataDir, OsDisk
data = DataDir.open(sys.argv[1], disk=OsDisk(), address="/tmp/holder.sock")
print("held", flush=True)
sys.stdin.read()
"""


def open_dir(path: Path, **settings: object) -> DataDir:
    return DataDir.open(str(path), disk=OsDisk(), **settings)  # type: ignore[arg-type]


def test_a_second_process_is_told_who_holds_the_directory_and_gets_it_when_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert DataDir.holder(str(tmp_path)) == Holder(holder.pid, "/tmp/holder.sock")
        with pytest.raises(DataDirLocked, match=rf"in use by process {holder.pid}, which listens at /tmp/holder.sock"):
            open_dir(tmp_path)
        holder.kill()
        holder.wait()
    with open_dir(tmp_path) as data:
        data.set_address("127.0.0.1:9092")
        assert DataDir.holder(str(tmp_path)) is not None
        with pytest.raises(DataDirLocked, match=r"listens at 127\.0\.0\.1:9092"):
            open_dir(tmp_path)
    assert DataDir.holder(str(tmp_path)) is None


def test_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    with open_dir(tmp_path / "new" / "data") as first:
        cluster_id = first.cluster_id
    with open_dir(tmp_path / "new" / "data") as second:
        assert (second.cluster_id, second.node_id) == (cluster_id, 1)
    with pytest.raises(StorageError, match="belongs to cluster"):
        open_dir(tmp_path / "new" / "data", cluster_id="other")
    with pytest.raises(StorageError, match="belongs to node 1, not 2"):
        open_dir(tmp_path / "new" / "data", node_id=2)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ("version=2\ncluster.id=x\nnode.id=1\n", "newer version of logflume"),
        ("version=1\nnode.id=1\n", "expected a value for cluster.id"),
        ("version=one\ncluster.id=x\nnode.id=1\n", "expected a value for version"),
        ("", "expected a value for version"),
    ],
)
def test_a_directory_that_is_not_understood_is_refused_and_left_alone(tmp_path: Path, meta: str, text: str) -> None:
    (tmp_path / "meta.properties").write_text(meta)
    with pytest.raises(StorageError, match=text):
        open_dir(tmp_path)
    assert (tmp_path / "meta.properties").read_text() == meta
    assert DataDir.holder(str(tmp_path)) is None


def test_a_flipped_bit_in_the_identity_is_found(tmp_path: Path) -> None:
    open_dir(tmp_path).close()
    meta = tmp_path / "meta.properties"
    sound = meta.read_bytes()
    first = sound.index(b"version")  # a comment comes before it
    for bit in range(first * 8, len(sound) * 8):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        meta.write_bytes(flipped)
        if bytes(flipped).split() == sound.split():
            continue
        with pytest.raises(StorageError):
            open_dir(tmp_path).close()
    meta.write_bytes(sound)
    open_dir(tmp_path).close()


def test_the_directory_and_what_is_in_it_are_private(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with open_dir(path) as data:
        data.open_partition("t", 0, topic_id=None, config=LogConfig(), now_ms=0, is_new=True).close()
        assert path.stat().st_mode & 0o777 == 0o700
        files = [each for each in path.rglob("*") if each.is_file()]
        assert files
        assert [each.name for each in files if each.stat().st_mode & 0o077] == []


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(StorageError, match=r"is not a logflume data directory .*found 'thesis.doc'"):
        open_dir(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        open_dir(tmp_path / "file" / "data")


def test_partitions_are_listed_opened_and_deleted(tmp_path: Path) -> None:
    with open_dir(tmp_path) as data:
        names = [("flights", 0), ("flights", 11), ("a-b-3", 7)]
        logs = [
            data.open_partition(topic, number, topic_id=None, config=LogConfig(), now_ms=0, is_new=True)
            for topic, number in names
        ]
        logs[0].append(encode_batch([b"k"], [b"v"], [0]), leader_epoch=0, now_ms=0)
        logs[0].close()
        assert sorted(data.partitions()) == sorted(names)
        assert (logs[2].topic, logs[2].partition) == ("a-b-3", 7)
        data.delete_partition(logs[1])
        assert sorted(data.partitions()) == sorted([names[0], names[2]])
        (tmp_path / "gone-0.0123456789abcdef0123456789abcdef-delete").mkdir()
        (tmp_path / "gone-0.0123456789abcdef0123456789abcdef-delete" / "x").write_text("")
    with open_dir(tmp_path) as data:
        assert not (tmp_path / "gone-0.0123456789abcdef0123456789abcdef-delete").exists()
        log = data.open_partition("flights", 0, topic_id=None, config=LogConfig(), now_ms=0, is_new=False)
        assert log.log_end_offset == 1
        log.close()
