"""State that a disk has damaged: an application finds it out, rebuilds it from its changelogs, and counts on from there."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import OffsetAndMetadata, StorageError, TopicPartition
from logflume.log.interfaces import Log
from logflume.streams.state import StateDamaged, TaskState
from logflume.streams.state.disk import after_prefix
from tests.kills._damage import WAYS, databases
from tests.streams._instance_process import passing_on
from tests.streams.running import embedded, read, running, until, write

INPUT, BEGIN = TopicPartition("in", 0), OffsetAndMetadata(0)
KEYS = [b"k%05d" % n for n in range(3_000)]


class Counting:
    """An application over a log, and what a kill has left of its state: most in sorted files, some in the write-ahead log."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.log, self.left, self.sent = log, folder / "left", Counter[bytes]()
        log.admin().ensure_topic("in", partitions=1)
        for state, keys in ((folder / "first", KEYS), (folder / "second", KEYS[::2])):
            self.run(state, keys, folder / "second" if state.name == "first" else self.left)

    def run(self, state: Path, keys: list[bytes], copy: Path | None = None) -> None:
        """Count some more keys; `copy`: where the state is copied to before the application ends."""
        write(self.log, "in", [(key, b"v", 1_000) for key in keys])
        self.sent.update(keys)
        with running(passing_on(), self.log, state) as engine:
            until(lambda: len(read(self.log, "out")) >= self.sent.total() and engine.status().lag_records == 0, engine)
            if copy is not None:
                shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.partial"))

    def damaged(self, folder: Path, way: str) -> Path:
        """Return a copy of what was left, damaged in some way."""
        state = shutil.copytree(self.left, folder / "state")
        (database,) = databases(state)
        assert WAYS[way](database, random.Random(1))
        return state


def spoil_entries(database: Path) -> None:
    """Change the middle of the largest file: what the database says of itself can be read, entries cannot."""
    largest = max(database.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    for place in range(len(data) // 4, len(data) * 3 // 4, 512):
        data[place] ^= 0xFF
    largest.write_bytes(data)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    folder = tmp_path_factory.mktemp("damaged")
    with embedded(folder / "log") as log:
        yield Counting(log, folder)


@pytest.mark.parametrize("way", WAYS)
def test_damage_changes_nothing(counting: Counting, tmp_path: Path, way: str) -> None:
    counting.run(counting.damaged(tmp_path, way), KEYS[::3])
    found = Counter((record.key, msgspec.json.decode(record.value or b"")["count"]) for record in read(counting.log, "out"))
    assert found == Counter((key, n) for key, sent in counting.sent.items() for n in range(1, sent + 1))


def test_what_is_damaged_is_never_read_as_if_there_was_nothing(counting: Counting, tmp_path: Path) -> None:
    """RocksDB's iterators end at a damaged block as they end at the last key; and what found it says what is to be done."""
    (database,) = databases(shutil.copytree(counting.left, tmp_path / "state"))
    spoil_entries(database)
    specs = passing_on().plan().subtopologies[0].program.stores
    state = TaskState(database, application="passing", task=database.name, specs=specs)
    reader = state.reader("counts")
    with pytest.raises(StateDamaged, match=r"is damaged .* rebuilt from the changelog"):
        for _ in state.stores["counts"].range(b"", None):
            pass
    begin = state.db.prefix("counts")
    end = after_prefix(begin)
    for found in (state.db.scan_keys(begin, end), state.db.scan_each([(begin, end)], end)):
        with pytest.raises(StateDamaged):
            list(found)
    with pytest.raises(StateDamaged):
        reader.get_many(KEYS)
    with pytest.raises(StateDamaged):  # nothing more is committed to it
        state.encode_dirty()
    state.close()
    with pytest.raises(StorageError, match="no CURRENT"):
        TaskState(database, application="passing", task=database.name, specs=specs)


class Doubled(lf.Processor):
    """Passes on how often a key was there, from its store."""

    def init(self, context: lf.Context) -> None:
        super().init(context)
        self.seen = context.store("seen")

    def process(self, record: lf.Record) -> None:
        self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(self.seen.get(record.key)))


def joining(app: lf.App) -> lf.Stream:
    return app.stream("in").join(app.stream("in"), lambda one, other: one, within=lf.hours(1))


def processing(app: lf.App) -> lf.Stream:
    return app.stream("in", str).process(Doubled, lf.key_value_store("seen"), key=str)


@pytest.mark.parametrize("build", [joining, processing])
def test_damage_is_found_wherever_state_is_read(tmp_path: Path, build: Callable[[lf.App], lf.Stream]) -> None:
    """While a task is opened, and in a function of the user, whose errors are else those of its record."""

    def run(state: Path, sent: int, copy: Path | None = None) -> Counter[tuple[bytes | None, bytes | None]]:
        app = lf.App("reading")
        build(app).to("out")
        write(log, "in", [(key, b'"%s"' % (b"v" * 200), 1_000) for key in KEYS[:1000]])
        with running(app, log, state, memory_bytes=1) as engine:
            until(lambda: log.admin().group_offsets("reading").get(INPUT, BEGIN).offset >= sent, engine)
            if copy is not None:
                shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.partial"))
        return Counter((record.key, record.value) for record in read(log, "out"))

    with embedded(tmp_path / "log") as log:
        log.admin().ensure_topic("in", partitions=1)
        run(tmp_path / "first", 1000, tmp_path / "second")
        run(tmp_path / "second", 2000, tmp_path / "third")
        (database,) = databases(tmp_path / "third")
        spoil_entries(database)
        found = run(tmp_path / "third", 3000)
        assert database.joinpath("CURRENT").exists()
    if build is joining:
        assert set(found.values()) == {9}
    else:
        assert found == Counter((key, b"%d" % n) for key in KEYS[:1000] for n in (1, 2, 3))
