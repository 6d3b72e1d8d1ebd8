"""The broker's core on a simulated disk: requests as objects, flushed at once, power cuts and restarts."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logflume.log.batch import check_crc, decode_records, parse_header
from logflume.log.broker.apis.topic_changes import make_own
from logflume.log.broker.core import Core
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.testing.simulated import SimulatedTime
from logflume.log.errors import StorageError
from logflume.log.storage import DataDir, PartitionLog
from logflume.log.storage.testing.disk import SimulatedDisk

from ._wire import create_topic_request, produce_request


def make_topic(core: Core, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Reply:
    """Make a topic as coordinators do; the reply is the errors by name."""
    return make_own(core, {name: (partitions, configs or {})})


async def made(errors: Reply) -> None:
    """Wait for `make_topic` of a broker that runs."""
    is_there = asyncio.Event()
    errors.then(lambda _: is_there.set())
    await is_there.wait()
    assert errors.value == {}


class SyncFlusher:
    """Flushes inside the request."""

    def request(self, log: PartitionLog, callback: Any) -> None:
        try:
            log.flush()
        except StorageError as error:
            callback(error)
        else:
            callback(None)


class LyingFlusher:
    """Says that all is durable and flushes nothing: a fault that the tests of power cuts must find."""

    def request(self, log: PartitionLog, callback: Any) -> None:
        ticket = log.begin_flush()
        if ticket is not None:
            log.finish_flush(ticket)
        callback(None)


class SimulatedBroker:
    """A broker without sockets and threads. `power_cut` loses what was not fsynced and starts it again."""

    def __init__(self, path: Path, *, flusher: Any = None, configs: Mapping[str, str] | None = None) -> None:
        self._configs = configs
        self.disk = SimulatedDisk()
        self._flusher = flusher or SyncFlusher()
        self._path = str(path)
        self.start()

    def start(self) -> None:
        """Open the directory as a new process would. Raises LogflumeError."""
        self.time = clock = SimulatedTime()
        self._data_dir = DataDir.open(self._path, disk=self.disk)
        try:
            self.core = Core(
                self._data_dir,
                disk=self.disk,
                config=BrokerConfig(self._configs),
                clock=clock,
                timers=clock,
                flusher=self._flusher,
                addresses={},
                disk_threads=1,
            )
        except BaseException:
            self._data_dir.close()
            raise
        self.handlers = Handlers(self.core)

    def power_cut(self, rng: random.Random) -> None:
        self.close_directory()
        self.disk.crash(rng)
        self.start()

    def close_directory(self) -> None:
        """Let go of the directory as a process that ends: nothing more is written."""
        self._data_dir.close()

    def close(self) -> None:
        self.core.close()
        self._data_dir.close()

    def call(self, message: Any, version: int) -> Any:
        outcome = self.handlers.handle(RequestContext(message.api_key, version, 1, "test", "here", 1), message)
        return outcome.value if isinstance(outcome, Reply) else outcome

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        return self.call(create_topic_request(name, partitions, **configs), 7).topics[0]

    def produce(self, topic: str, *batches: bytes | None) -> list[Any]:
        return list(self.call(produce_request(topic, *batches), 9).responses[0].partition_responses)

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return all values that a reader sees, in offset order; asserts that offsets are dense from 0. Raises CorruptBatch."""
        found = self.core.partition(topic, partition)
        assert found is not None, (topic, partition)
        batches = [batch.read() for _, batch in found.log.headers(0)]
        for data in batches:
            check_crc(data, parse_header(data))
        records = [record for data in batches for record in decode_records(data)]
        assert [record.offset for record in records] == list(range(len(records)))
        return [record.value for record in records]
