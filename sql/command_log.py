"""The commands that made the catalog, in a topic of one partition: replayed at start, and the order that all instances agree on.

A command is one JSON object {v, statement, query_id, properties, plan, expected}. A record that is none was not written by an
engine: it is left out by all of them alike, named in the log and counted. One of a newer version stops the start: going on
without it would change what later ones mean.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from logflume.log import SERVICE_PREFIX, Chunk, TopicPartition
from logflume.log.interfaces import Log

from .errors import SqlError
from .recorded import RecordedPlan

_decode_plan = msgspec.json.Decoder(RecordedPlan | None).decode

VERSION = 1
_READ_TIMEOUT_S = 30.0
_NULL = msgspec.Raw(b"null")
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_log = logging.getLogger("logflume.sql")


class NoCommand(SqlError):
    """A record of the command topic that is not a command."""

    code = "SQL_NO_COMMAND"


def command_topic(service: str) -> str:
    """Return the topic of a service's commands; its name makes it internal.

    >>> command_topic("logflume-sql"), command_topic("other")
    ('_logflume-sql-commands', '_logflume-other-commands')
    """
    return f"{SERVICE_PREFIX}{service.removeprefix('logflume-')}-commands"


@dataclass(frozen=True, slots=True)
class Command:
    """A statement that changed the catalog.

    Attributes:
        query_id: given to the query that it made.
        plan: what that query was planned as.
        expected: the offset that this command had if no other came first: it was checked against what was there before.
    """

    statement: str
    query_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    plan: RecordedPlan | None = None
    expected: int | None = None

    def encode(self) -> bytes:
        fields = {
            "v": VERSION,
            "statement": self.statement,
            "query_id": self.query_id,
            "properties": dict(self.properties),
            "plan": self.plan,
            "expected": self.expected,
        }
        return msgspec.json.encode(fields)

    @classmethod
    def decode(cls, data: bytes | None, where: str) -> Command:
        """Raises NoCommand for what is not a command, SqlError for one of a newer version."""
        try:
            fields = _DECODER.decode(data or b"")
            version = msgspec.json.decode(fields["v"], type=int)
            statement = msgspec.json.decode(fields["statement"], type=str)
            if version <= VERSION:
                query_id = msgspec.json.decode(fields["query_id"], type=str | None)
                properties = msgspec.json.decode(fields["properties"], type=dict[str, str])
                plan = _decode_plan(fields.get("plan", _NULL))
                expected = msgspec.json.decode(fields.get("expected", _NULL), type=int | None)
                return cls(statement, query_id, properties, plan, expected)
        except (ValueError, KeyError, RecursionError) as e:
            raise NoCommand(f"{where} is not a SQL command ({type(e).__name__}: {e})") from None
        raise SqlError(f"{where} was written by a newer logflume (command version {version}); use that one")


class CommandLog:
    """See the module. Used under its owner's lock."""

    def __init__(self, log: Log, topic: str) -> None:
        self.topic = topic
        self._partition = TopicPartition(topic, 0)
        self._admin = log.admin()
        configs = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        self._admin.ensure_topic(topic, partitions=1, configs=configs)
        self._producer = log.producer(linger_ms=0)
        self._consumer = log.consumer(read_committed=False)
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)
        self.next_offset = 0
        self.left_out = 0
        """Records that are not commands."""

    def append(self, command: Command) -> int:
        """Write a command; on return it is on disk. Return its offset."""
        future = self._producer.send(self.topic, command.encode(), partition=0)
        self._producer.flush()
        return future.result().offset

    def read_new(self, *, stop: int | None = None) -> Iterator[tuple[int, Command]]:
        """Yield the commands that were not read yet, up to an offset that there is; None: to the end of the topic now."""
        end = self._admin.end_offsets([self._partition])[self._partition] if stop is None else stop
        idle_s = 0.0
        while self.next_offset < end:
            chunks = self._consumer.poll(timeout_s=1.0)
            idle_s = 0.0 if chunks else idle_s + 1.0
            if idle_s >= _READ_TIMEOUT_S:
                raise SqlError(f"{self.topic} has commands up to offset {end}, but nothing came from {self.next_offset} on")
            for chunk in chunks:
                yield from self._commands(chunk)

    def read_arrived(self) -> Iterator[tuple[int, Command]]:
        """Yield the commands that have arrived and were not read yet: new ones are on their way without being asked for."""
        for chunk in self._consumer.poll(timeout_s=0.0):
            yield from self._commands(chunk)

    def _commands(self, chunk: Chunk) -> Iterator[tuple[int, Command]]:
        for record in chunk.records():
            self.next_offset = record.offset + 1
            try:
                command = Command.decode(record.value, f"{self.topic} offset {record.offset}")
            except NoCommand as e:
                self.left_out += 1
                _log.warning("%s; left out, %d so far", e, self.left_out)
                continue
            yield record.offset, command
        self.next_offset = max(self.next_offset, chunk.next_offset)

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()
