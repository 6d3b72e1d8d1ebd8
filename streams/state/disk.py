"""One RocksDB per task: all its stores behind a prefix, and its checkpoint, so that one write batch is one atomic step.

Keys: 0x00 + name for what describes the database; 0x01 + store number + [segment, 8 bytes] + entry key for entries. One column
family for everything, so that a crash of the machine cannot keep one store's batch and lose another's.

A batch goes to RocksDB's write-ahead log without fsync: SIGKILL loses nothing, a crash of the machine may lose the last batches,
whose changelog positions are lost with them: the changelog (which is fsynced) is then replayed from there.

Much of a changelog at once goes into a file in order of keys, which RocksDB takes over as it is: less than half the work of a
batch. The checkpoint is written after that, so that a crash between them replays what is there already.

RocksDB checks each block when it reads it. What it finds damaged ends the database: the read or write raises, and its CURRENT is
gone when it is closed, so that whoever opens it next rebuilds it from the changelog.
"""

from __future__ import annotations

import logging
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from logflume.log import DataDirLocked, InvalidInput, LogflumeError, StorageError
from logflume.streams.seams import StoreSpec

from .checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from .memory import DiskMemory
from .windows import SegmentLayout

_log = logging.getLogger("logflume.streams")

DISK_FORMAT = 1
_HEADER, _CHECKPOINT, _ENTRIES = b"\x00header", b"\x00checkpoint", b"\x01"
_MAX_STORES = 255
_LAYOUT = ", in segments of "
_SORTED_FILE = "restored.sst"
_UNSORTED_FILES = 8
"""Files over the whole range of keys before they are merged, which rewrites all entries of most tasks: twice RocksDB's default.

A read looks into each of them, by its filter: with 7 of them it takes 6.9 us in place of 6.5.
"""
_ONLY_FAMILY = "default"
"""Opened by name: of a database that is there rocksdict takes the options from its OPTIONS file otherwise, of which RocksDB has
lost what is an object: a cache of 8 MiB to each, no filters, and write buffers as large as once.
"""
_DAMAGE = "Corruption"
_RECORD_HEADER, _BLOCK_BYTES = struct.Struct("<IHB"), 32 << 10
_WHOLE, _LAST_PART = 1, 4
_LOCKED = re.compile(r"lock hold by|While lock file")
_ROCKSDB_FILE = re.compile(
    r"restored\.sst|LOCK|IDENTITY|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|\d+\.(sst|log|dbtmp|blob)|rocksdict-config\.json"
)


class Header(msgspec.Struct, frozen=True):
    """What a database says about itself; `stores`: name -> (number, description of its columns)."""

    format: int
    application: str
    task: str
    stores: dict[str, tuple[int, str]]


_decode_header = msgspec.json.Decoder(Header).decode


class StoreChanged(InvalidInput):
    """A store on disk is not what the topology keeps under its name. `is_layout`: only in how entries lie on disk."""

    def __init__(self, message: str, store: str, *, is_layout: bool) -> None:
        super().__init__(message)
        self.store, self.is_layout = store, is_layout


class StateDamaged(StorageError):
    """What is on disk is not what was written. The database is given up: what opens it next rebuilds it."""

    code = "STATE_DAMAGED"
    is_retriable = True


class TaskDb:
    """The database of one task. One writer; readers in any thread through `reading`, which holds off `close`."""

    def __init__(self, path: Path, *, application: str, task: str, specs: Sequence[StoreSpec], memory: DiskMemory) -> None:
        """Open or create.

        Raises:
            DataDirLocked: another process, or another task of this one, has it open.
            InvalidInput: it belongs to another application or task, to a newer logflume, or a store has changed (StoreChanged).
            StorageError: RocksDB cannot open it (the message says what to do); StateDamaged: it can, and cannot read it.
        """
        import rocksdict

        self.path = path
        self._batch_class = rocksdict.WriteBatch
        self._options = _options(memory)
        self._db = _open(path, self._options)
        self._guard = threading.Condition()
        self._readers = 0
        self._is_closed = self._is_damaged = False
        try:
            self._header = _checked_header(self._get(_HEADER), path, application, task, specs)
            with self._saying_what_failed("write state to"):
                self._db.put(_HEADER, msgspec.json.encode(self._header))
        except BaseException:
            self.close()
            raise

    def prefix(self, store: str) -> bytes:
        """Return what the disk keys of a store begin with."""
        return _ENTRIES + bytes([self._header.stores[store][0]])

    def checkpoint(self) -> Checkpoint | None:
        """Return the last one written, None for a new database."""
        data = self._get(_CHECKPOINT)
        return None if data is None else decode_checkpoint(data)

    def refuse_damage(self) -> None:
        """Raise StateDamaged where damage was found, whoever was told: a function of the user may have taken it for its own."""
        if self._is_damaged:
            raise self._damage("what was read of it fails its checksum")

    def batch(self) -> Any:
        """Return an empty write batch."""
        return self._batch_class(raw_mode=True)

    def write(self, batch: Any, checkpoint: Checkpoint) -> None:
        """Write the batch together with the checkpoint, atomically."""
        batch.put(_CHECKPOINT, encode_checkpoint(checkpoint))
        with self._saying_what_failed("write state to"):
            self._db.write(batch)

    @contextmanager
    def sorted_file(self) -> Iterator[Any]:
        """Lend what takes items (`file[disk key] = value`, `del file[disk key]`), keys ascending, none twice, at least one.

        They are in the database when this ends, whatever was there before; none of them when it fails.
        """
        import rocksdict

        path = self.path / _SORTED_FILE
        writer = rocksdict.SstFileWriter(self._options)
        taken_over = rocksdict.IngestExternalFileOptions()
        taken_over.set_move_files(True)
        try:
            with self._saying_what_failed("write state to"):
                path.unlink(missing_ok=True)  # a kill may have left a second name of a file in use, which is not written over
                writer.open(str(path))
                yield writer
                writer.finish()
                self._db.ingest_external_file([str(path)], taken_over)
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _saying_what_failed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except LogflumeError:
            raise
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure(doing, error) from error

    def _failure(self, doing: str, error: Exception) -> StorageError:
        if str(error).startswith(_DAMAGE):
            return self._damage(str(error))
        return StorageError(f"cannot {doing} {self.path}: {error}; free space or repair the disk, then restart")

    def _damage(self, cause: str) -> StateDamaged:
        self._is_damaged = True
        return StateDamaged(f"the state in {self.path} is damaged ({cause}); it is rebuilt from the changelog")

    def _get(self, keys: Any) -> Any:
        try:
            return self._db.get(keys)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._failure("read state from", error) from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of disk keys, aligned; None where there is none."""
        found: list[bytes | None] = self._get(keys)
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (disk key, value) with start <= key < stop, in order, as of now."""
        rows = self._rows(stop)  # `items` would end at a damaged block as if there was nothing more
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        failure = self._early_end(rows)
        del rows  # it holds the database, and who handles the error this frame
        if failure is not None:
            raise failure

    def scan_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the disk keys with start <= key < stop, in order, as of now: a fifth of the work of `scan`."""
        rows = self._rows(stop)
        rows.seek(start)
        valid, key, following = rows.valid, rows.key, rows.next
        while valid():
            yield key()
            following()
        failure = self._early_end(rows)
        del rows, valid, key, following  # they hold the database, as above
        if failure is not None:
            raise failure

    def scan_each(self, spans: Sequence[tuple[bytes, bytes]], stop: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (number of the span, disk key, value) of many spans start <= key < end, all of them before `stop`.

        Cheapest where they ascend. They may overlap.
        """
        rows, failure = self._rows(stop), None
        for number, (start, end) in enumerate(spans):
            rows.seek(start)
            while rows.valid() and (key := rows.key()) < end:
                yield number, key, rows.value()
                rows.next()
            if not rows.valid() and (failure := self._early_end(rows)) is not None:
                break
        del rows  # as above
        if failure is not None:
            raise failure

    def _rows(self, stop: bytes) -> Any:
        import rocksdict

        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(stop)
        return self._db.iter(options)

    def _early_end(self, rows: Any) -> StorageError | None:
        """Return why an iterator ended before its end; None: it did not."""
        try:
            rows.status()
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
            return self._failure("read state from", error)
        return None

    def estimated_keys(self) -> int:
        """Return about how many entries all stores have."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def estimated_bytes(self) -> int:
        """Return about how much all stores take, compressed as they are on disk."""
        return int(self._db.property_int_value("rocksdb.estimate-live-data-size") or 0) + self.write_buffers_bytes()

    def write_buffers_bytes(self) -> int:
        """Return how much is in memory because it has not been written to a file yet."""
        return int(self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    def is_empty(self, store: str) -> bool:
        """Return whether a store has no entry."""
        prefix = self.prefix(store)
        return next(self.scan(prefix, after_prefix(prefix)), None) is None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold off `close` for a read in another thread. Raises StorageError when closed already."""
        with self._guard:
            if self._is_closed:
                raise StorageError(f"the state in {self.path} has been closed: its partition moved or the engine stopped")
            self._readers += 1
        try:
            yield
        finally:
            with self._guard:
                self._readers -= 1
                self._guard.notify_all()

    def close(self) -> None:
        """Wait for readers, then close. Idempotent.

        What the disk does not take any more is lost here and said: the changelog has it.
        """
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._guard.wait_for(lambda: self._readers == 0)
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
            self._db = None  # what is left of it lets go of the directory
            _log.warning("state in %s could not be written to the end: %s; the next start restores the rest", self.path, error)
        if self._is_damaged:
            (self.path / "CURRENT").unlink(missing_ok=True)


def after_prefix(prefix: bytes) -> bytes:
    """Return the smallest key greater than all keys with this prefix (which must not be all 0xff).

    >>> after_prefix(b"a\\xff")
    b'b'
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def describe_spec(spec: StoreSpec) -> str:
    """Return what must not change while a store has entries, as text."""
    key = ", ".join(f"{c.name} {c.type}" for c in spec.key)
    columns = ", ".join(f"{c.name} {c.type}" for c in spec.columns)
    window = f" window {spec.window.size_ms}/{spec.window.advance_ms} ms" if spec.window else ""
    layout = f"{_LAYOUT}{SegmentLayout(spec.window).segment_ms} ms" if spec.window else ""
    return f"key ({key}){window} state ({columns}){layout}"


def _options(memory: DiskMemory) -> Any:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(memory.write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_level_zero_file_num_compaction_trigger(_UNSORTED_FILES)
    options.set_max_open_files(256)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())  # else a read of a file takes its whole index
    table.set_partition_filters(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options


def _open(path: Path, options: Any) -> Any:
    import rocksdict

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path / "CURRENT").exists():
        found = sorted(entry.name for entry in path.iterdir())
        if any(_ROCKSDB_FILE.fullmatch(name) is None for name in found):
            raise InvalidInput(
                f"{path} is not a state directory of logflume (files in it, but no RocksDB); choose another state_dir"
            )
        if found:
            raise StorageError(
                f"the state in {path} was damaged, or half made or deleted when its process was killed: it has no CURRENT"
            )
    if path.exists() and not is_whole(_manifest(path)):
        raise _unreadable(path, "its manifest ends too early")
    try:
        return rocksdict.Rdict(str(path), options, column_families={_ONLY_FAMILY: options})
    except Exception as error:  # rocksdict raises bare Exception
        text = str(error)
        if _LOCKED.search(text):
            raise DataDirLocked(
                f"{path} is open in another process or task; stop it, or give this instance its own state_dir"
            ) from None
        raise _unreadable(path, text) from error


def _unreadable(path: Path, cause: str) -> StorageError:
    return StorageError(f"cannot open the state in {path}: {cause}; delete the directory to rebuild it from the changelog")


def _manifest(path: Path) -> bytes:
    """Return what names the files of the database; nothing where RocksDB will say what is wrong."""
    try:
        return (path / (path / "CURRENT").read_text().strip()).read_bytes()
    except (OSError, ValueError):
        return b""


def is_whole(manifest: bytes) -> bool:
    """Return whether a manifest ends with a whole record.

    RocksDB takes one that ends within a record as if that was never written, and files that it named are lost without a word.
    A record is a checksum (4 bytes), a length (2), a kind (1) and data, in parts that lie within blocks of 32 KiB.
    """
    at, kind = 0, _WHOLE
    while at < len(manifest):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER.size:
            at += left
            continue
        if len(manifest) - at < _RECORD_HEADER.size:
            return False
        _, length, kind = _RECORD_HEADER.unpack_from(manifest, at)
        at += _RECORD_HEADER.size + length
    return at == len(manifest) and kind in (_WHOLE, _LAST_PART)


def _checked_header(data: bytes | None, path: Path, application: str, task: str, specs: Sequence[StoreSpec]) -> Header:
    assert len(specs) <= _MAX_STORES, "store numbers are one byte"
    if data is None:
        return Header(DISK_FORMAT, application, task, {spec.name: (i, describe_spec(spec)) for i, spec in enumerate(specs)})
    try:
        found = _decode_header(data)
    except msgspec.MsgspecError as error:
        raise StorageError(f"the header of {path} cannot be read: {error}; delete the directory to rebuild it") from error
    if found.format != DISK_FORMAT:
        raise InvalidInput(
            f"{path} has state format {found.format}, this logflume reads {DISK_FORMAT}: use the version that wrote it"
        )
    if (found.application, found.task) != (application, task):
        raise InvalidInput(
            f"{path} belongs to task {found.task!r} of application {found.application!r}, not to {task!r} of {application!r}; "
            "choose another state_dir"
        )
    stores = dict(found.stores)
    for spec in specs:
        number, description = stores.setdefault(
            spec.name, (max((n for n, _ in stores.values()), default=-1) + 1, describe_spec(spec))
        )
        if description != describe_spec(spec):
            raise StoreChanged(
                f"store {spec.name!r} in {path} was written as {description}, the topology now says {describe_spec(spec)}; "
                "give the changed store a new name, or reset the application to compute it again",
                spec.name,
                is_layout=description.partition(_LAYOUT)[0] == describe_spec(spec).partition(_LAYOUT)[0],
            )
        assert number < _MAX_STORES
    return Header(DISK_FORMAT, application, task, stores)
