"""One soak: a broker process that is killed again and again, workers, and at the end a look at everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logflume.log import Log, TopicPartition, connect
from logflume.log.storage import OsDisk
from logflume.log.storage.verify import verify_log

from ..log._server_process import ServerProcess
from ._checker import Anomaly, check, summary
from ._churn import Churn, TableWriter, TopicChurner, Trimmer
from ._clients import ConfluentReader, ConfluentWriter, OwnReader, OwnWriter, Reader, Writer
from ._faults import Faults
from ._groups import ShareReader, StreamsMember
from ._history import At, Copy, History, Records, by_partition
from ._workers import AssignedReader, Copier, EndWatcher, GroupReader, PlainProducer, TransactionProducer, Worker

PARTITIONS = 3
PLAIN = [At("plain", index) for index in range(PARTITIONS)]
TXN = [At("txn", index) for index in range(PARTITIONS)]
COPIES = [Copy("copier-own", "plain", "copy-own"), Copy("copier-confluent", "plain", "copy-confluent")]
BROKER_CONFIGS = (
    "log.segment.bytes=400000",
    "log.flush.offset.checkpoint.interval.ms=1500",
    "group.min.session.timeout.ms=1000",
    "log.retention.check.interval.ms=700",
    "log.cleaner.backoff.ms=200",
    "log.cleaner.io.max.bytes.per.second=60000",
)
"""Segments, checkpoints, retention and compaction come often, so that kills hit rolling, checkpointing and compacting too."""
JOIN_TIMEOUT_S = 120.0
PATIENCE_S = 120.0
"""How much longer a soak goes on if by its end somebody got nowhere yet, as on a busy machine."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of a soak."""

    history: History
    anomalies: list[Anomaly]
    counts: dict[str, int]
    recovery_s: list[float]
    """How long each start after a kill took."""


def soak(
    data_dir: Path,
    *,
    seconds: float,
    seed: int = 1,
    pause_s: float = 0.02,
    kill_every_s: tuple[float, float] = (1.0, 5.0),
    min_kills: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run for so many seconds, then check. Raises AssertionError if a worker fails or gets nowhere.

    On a busy machine it takes longer: until every worker got somewhere and the broker was killed `min_kills` times.
    """
    rng = random.Random(seed)
    server = ServerProcess(str(data_dir), BROKER_CONFIGS)
    history = History(copies=COPIES)
    with connect(server.address) as log:
        admin = log.admin()
        for topic in ("plain", "txn", *(copy.target for copy in COPIES)):
            admin.create_topic(topic, partitions=PARTITIONS)
        churn = _churn(log, server.address, pause_s)
        for topic, configs in (item for each in churn for item in each.topics.items()):
            admin.create_topic(topic, partitions=PARTITIONS, configs=configs)
        workers = [*_workers(log, server.address, pause_s), *churn]
        for worker in workers:
            worker.start()
        faults = Faults(server, rng)
        _strike_again_and_again(faults, workers, seconds, kill_every_s, min_kills, say)
        history.kills = faults.counts["kills"]
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            assert worker.join(JOIN_TIMEOUT_S), f"{worker.name} does not end"
            assert worker.fault is None, f"{worker.name} failed: {worker.fault!r}"
            assert worker.progress, f"{worker.name} got nowhere"
            history.lists[worker.name] = worker.events
            history.deaths += worker.deaths
        say("reading everything")
        _end_open_transactions(log, server.address)
        _look(log, server.address, history)
        anomalies = check(history)
        for each in churn:
            # Not compared with one another: compaction may go on in between.
            for reader in (OwnReader(log), ConfluentReader(server.address)):
                anomalies += each.anomalies(log, _read_all(reader, _starts(log, each.partitions)))
    assert server.stop() == 0
    anomalies += _damage(data_dir)
    return Result(history, anomalies, summary(history) | dict(faults.counts), faults.recovery_s)


def _workers(log: Log, address: str, pause_s: float) -> list[Worker]:
    def own_writer(transactional_id: str | None) -> Writer:
        return OwnWriter(log, transactional_id)

    def confluent_writer(transactional_id: str | None) -> Writer:
        return ConfluentWriter(address, transactional_id)

    def own_reader(group: str | None, read_committed: bool) -> Reader:
        return OwnReader(log, group=group, read_committed=read_committed)

    def confluent_reader(group: str | None, read_committed: bool) -> Reader:
        return ConfluentReader(address, group=group, read_committed=read_committed)

    def own_consumer_protocol(group: str | None, read_committed: bool) -> Reader:
        return OwnReader(log, group=group, read_committed=read_committed, protocol="consumer")

    def confluent_consumer_protocol(group: str | None, read_committed: bool) -> Reader:
        return ConfluentReader(address, group=group, read_committed=read_committed, protocol="consumer")

    workers: list[Worker] = [EndWatcher("ends", [*PLAIN, *TXN], log, pause_s=0.1)]
    for kind, write, read in (("own", own_writer, own_reader), ("confluent", confluent_writer, confluent_reader)):
        workers += [
            PlainProducer(f"plain-{kind}", PLAIN, write, pause_s=pause_s),
            TransactionProducer(f"txn-{kind}", TXN, write, pause_s=pause_s),
            Copier(f"copier-{kind}", PLAIN, f"copy-{kind}", write, read, pause_s=pause_s),
            AssignedReader(f"committed-{kind}", TXN, read, read_committed=True, pause_s=pause_s),
            AssignedReader(f"uncommitted-{kind}", TXN, read, read_committed=False, pause_s=pause_s),
            GroupReader(f"group-{kind}", PLAIN, read, own_reader if kind == "confluent" else confluent_reader, pause_s=pause_s),
        ]
    workers += [
        GroupReader("protocol-own", PLAIN, own_consumer_protocol, confluent_reader, pause_s=pause_s),
        GroupReader("protocol-confluent", PLAIN, confluent_consumer_protocol, own_reader, pause_s=pause_s),
    ]
    return workers


def _churn(log: Log, address: str, pause_s: float) -> list[Churn]:
    return [
        TableWriter("table", "table", PARTITIONS, lambda _: ConfluentWriter(address), pause_s=pause_s),
        Trimmer("trimmed", "trimmed", PARTITIONS, lambda _: OwnWriter(log), log, pause_s=pause_s),
        TopicChurner("topics", log, pause_s=10 * pause_s),
        ShareReader("share", PLAIN, address, pause_s=pause_s),
        StreamsMember("streams", PLAIN, log, lambda group, _: ConfluentReader(address, group=group), pause_s=pause_s),
    ]


def _strike_again_and_again(
    faults: Faults,
    workers: Sequence[Worker],
    seconds: float,
    every_s: tuple[float, float],
    min_kills: int,
    say: Callable[[str], None],
) -> None:
    end_s = time.monotonic() + seconds

    def is_over() -> bool:
        now_s = time.monotonic()
        has_all = faults.counts["kills"] >= min_kills and all(worker.progress for worker in workers)
        return now_s >= end_s and (has_all or now_s >= end_s + PATIENCE_S)

    said_s = time.monotonic()
    while not is_over():
        time.sleep(faults.rng.uniform(*every_s))
        faults.strike()
        for worker in workers:
            assert worker.fault is None, f"{worker.name} failed: {worker.fault!r}"
        if time.monotonic() - said_s > 30:
            said_s = time.monotonic()
            left_s = max(0.0, end_s - said_s)
            say(f"{dict(faults.counts)}, {sum(len(worker.events) for worker in workers)} events, {left_s:.0f} s left")


def _end_open_transactions(log: Log, address: str) -> None:
    """Let new producers of the same ids end what the last ones left open."""
    for kind in ("own", "confluent"):
        for name in (f"txn-{kind}", f"copier-{kind}"):
            (OwnWriter(log, name) if kind == "own" else ConfluentWriter(address, name)).close()


def _look(log: Log, address: str, history: History) -> None:
    """Read everything, with two clients, which must see the same."""
    partitions = [*PLAIN, *TXN, *(At(copy.target, index) for copy in COPIES for index in range(PARTITIONS))]
    for read_committed in (True, False):
        own = _read_all(OwnReader(log, read_committed=read_committed), dict.fromkeys(partitions, 0))
        other = _read_all(ConfluentReader(address, read_committed=read_committed), dict.fromkeys(partitions, 0))
        assert own == other, "logflume's consumer and confluent-kafka's read different records"
        if read_committed:
            history.committed = own
        else:
            history.uncommitted = own
    for copy in history.copies:
        for tp, at in log.admin().group_offsets(copy.group, is_stable=True).items():
            history.group_offsets[copy.group, At(tp.topic, tp.partition)] = at.offset


def _starts(log: Log, partitions: Sequence[At]) -> dict[At, int]:
    found = log.admin().start_offsets([TopicPartition(*at) for at in partitions])
    return {At(tp.topic, tp.partition): offset for tp, offset in found.items()}


def _read_all(reader: Reader, starts: Mapping[At, int]) -> Records:
    """Read each partition from its begin until nothing is left; markers and aborted records have offsets but are not given."""
    if not starts:
        return {}
    reader.assign(starts)
    found: list[tuple[At, int, str]] = []
    quiet = 0
    while quiet < 8:
        records = reader.poll()
        found += records
        quiet = 0 if records else quiet + 1
    reader.close()
    return by_partition(found)


def _damage(data_dir: Path) -> list[Anomaly]:
    disk = OsDisk()
    directories = [path for path in data_dir.iterdir() if path.is_dir() and any(path.glob("*.log"))]
    assert len(directories) >= 4 * PARTITIONS
    return [
        Anomaly("damaged-file", f"{damage.path} at {damage.position}: {damage.cause}")
        for path in directories
        for damage in verify_log(str(path), disk=disk)
    ]
