"""What runs during a soak: producers, transactions, copies, readers, groups, a watcher of ends. Each is a thread with a list."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from logflume.log import Log, LogflumeError, TopicPartition

from ._clients import Broken, Reader, Writer
from ._history import (
    ABORTED,
    COMMITTED,
    OK,
    SUBSCRIBED,
    UNKNOWN,
    At,
    EndSeen,
    Event,
    OffsetCommit,
    OffsetRead,
    Polled,
    Sent,
    Transaction,
)

MakeWriter = Callable[[str | None], Writer]
MakeReader = Callable[[str | None, bool], Reader]
RETRY_S = 0.05
DEATHS = 0.03
"""Part of the transactions in which the client dies: it says nothing more, and another one with its id takes its place."""


class Worker(ABC):
    """A thread that lives in sessions: each makes its clients and works until one breaks or the end.

    `events` is written by this worker only (and by the callbacks of its producer), in the order of its time.
    """

    def __init__(self, name: str, *, pause_s: float) -> None:
        self.name, self.pause_s = name, pause_s
        self.events: list[Event] = []
        self.sessions = self.progress = self.deaths = 0
        self.fault: BaseException | None = None
        """What ended the worker although nothing in it foresees it."""
        self.stopping = threading.Event()
        self.rng = random.Random(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False if it did not come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def pause(self) -> bool:
        """Wait a little; False when it is time to stop."""
        return not self.stopping.wait(self.pause_s)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.sessions += 1
                try:
                    self.session()
                except Broken:
                    self.stopping.wait(RETRY_S)
        except BaseException as error:  # noqa: BLE001 - told by the run, which fails with it
            self.fault = error

    @abstractmethod
    def session(self) -> None: ...

    def maybe_die(self) -> None:
        """Now and then end this session where it stands. Raises Broken."""
        if self.rng.random() < DEATHS:
            self.deaths += 1
            raise Broken("the client dies")

    def send(self, writer: Writer, at: At, value: str, number: int, *, txn: int | None = None) -> None:
        """Send and note it; the outcome is noted when it comes."""
        sent = Sent(self.name, self.sessions, number, at, value, txn)
        self.events.append(sent)

        def done(outcome: str, offset: int) -> None:
            sent.outcome, sent.offset = outcome, offset

        writer.send(at, value, done)


class PlainProducer(Worker):
    """Sends records one after the other, idempotently, and now and then waits for all of them."""

    def __init__(self, name: str, partitions: Sequence[At], make: MakeWriter, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._make = partitions, make

    def session(self) -> None:
        writer = self._make(None)
        number = 0
        try:
            while self.pause():
                for _ in range(self.rng.randrange(1, 10)):
                    number += 1
                    self.send(writer, self.rng.choice(self._partitions), f"{self.name}:{self.sessions}:{number}", number)
                if number % 7 == 0:
                    writer.flush()
                self.progress = number
        finally:
            writer.flush()
            writer.close()


class TransactionProducer(Worker):
    """Commits transactions over all partitions, aborts three of ten, and begins anew with the same id when one breaks."""

    def __init__(self, name: str, partitions: Sequence[At], make: MakeWriter, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._make = partitions, make
        self._txn = 0

    def session(self) -> None:
        writer = self._make(self.name)
        number = 0
        while self.pause():
            self._txn += 1
            transaction = Transaction(self.name, self._txn)
            self.events.append(transaction)
            writer.begin()
            for at in [*self._partitions, self.rng.choice(self._partitions)]:
                number += 1
                self.send(writer, at, f"{self.name}:{self.sessions}:{number}", number, txn=self._txn)
            self.maybe_die()
            if self.rng.random() < 0.3:
                writer.flush()
                writer.abort()
                transaction.outcome = ABORTED
                continue
            transaction.is_commit_tried = True
            writer.commit()
            transaction.outcome = COMMITTED
            self.progress = self._txn
        writer.close()


class Copier(Worker):
    """Reads a topic, writes what it read to another, and commits its offsets, in one transaction each time."""

    def __init__(
        self, name: str, partitions: Sequence[At], target: str, make: MakeWriter, read: MakeReader, *, pause_s: float
    ) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._target, self._make, self._read = partitions, target, make, read

    def session(self) -> None:
        writer = self._make(self.name)
        reader = self._read(self.name, True)
        try:
            committed = reader.committed(self._partitions)
            reader.assign({at: max(0, committed[at]) for at in self._partitions})
            while self.pause():
                records = reader.poll()
                if not records:
                    continue
                writer.begin()
                for at, _, value in records:
                    writer.send(At(self._target, at.partition), value, lambda outcome, offset: None)
                self.maybe_die()
                writer.send_offsets({at: offset + 1 for at, offset, _ in records}, reader)
                self.maybe_die()
                writer.commit()
                self.progress += len(records)
            writer.close()
        finally:
            reader.close()


class AssignedReader(Worker):
    """Reads partitions from the beginning, without a group, again and again over the broker's deaths."""

    def __init__(self, name: str, partitions: Sequence[At], read: MakeReader, *, read_committed: bool, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._read, self._read_committed = partitions, read, read_committed
        self._positions = dict.fromkeys(partitions, 0)

    def session(self) -> None:
        reader = self._read(None, self._read_committed)
        try:
            reader.assign(self._positions)
            while self.pause():
                for at, offset, value in reader.poll():
                    self.events.append(Polled(self.name, self.sessions, at, offset, value, self._read_committed))
                    self._positions[at] = offset + 1
                    self.progress += 1
        finally:
            reader.close()


class GroupReader(Worker):
    """The one member of a group: reads, commits, and now and then leaves and looks at what is committed.

    Every commit is read back by another client.
    """

    def __init__(self, name: str, partitions: Sequence[At], read: MakeReader, read_back: MakeReader, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._read, self._read_back = partitions, read, read_back

    def session(self) -> None:
        reader = self._read(self.name, True)
        other = self._read_back(self.name, True)
        try:
            for at, offset in reader.committed(self._partitions).items():
                self.events.append(OffsetRead(self.name, at, offset))
            reader.subscribe(self._partitions[0].topic)
            for _ in range(self.rng.randrange(20, 200)):
                if not self.pause():
                    return
                self._step(reader, other)
        finally:
            other.close()
            reader.close()

    def _step(self, reader: Reader, other: Reader) -> None:
        records = reader.poll()
        for at, offset, value in records:
            self.events.append(Polled(self.name, SUBSCRIBED, at, offset, value, True))
        ends = {at: offset + 1 for at, offset, _ in records}
        if not ends:
            return
        try:
            reader.commit(ends)
        except Broken:
            self.events += [OffsetCommit(self.name, at, offset, UNKNOWN) for at, offset in ends.items()]
            raise
        self.events += [OffsetCommit(self.name, at, offset, OK) for at, offset in ends.items()]
        self.events += [OffsetRead(self.name, at, offset) for at, offset in other.committed(list(ends)).items()]
        self.progress += 1


class EndWatcher(Worker):
    """Asks for high watermarks and last stable offsets."""

    def __init__(self, name: str, partitions: Sequence[At], log: Log, *, pause_s: float) -> None:
        super().__init__(name, pause_s=pause_s)
        self._partitions, self._log = partitions, log

    def session(self) -> None:
        admin = self._log.admin()
        partitions = [TopicPartition(*at) for at in self._partitions]
        while self.pause():
            for read_committed in (False, True):
                try:
                    ends = admin.end_offsets(partitions, read_committed=read_committed)
                except LogflumeError as error:
                    raise Broken(str(error)) from error
                self.events += [EndSeen(At(tp.topic, tp.partition), end, read_committed) for tp, end in ends.items()]
            self.progress += 1
