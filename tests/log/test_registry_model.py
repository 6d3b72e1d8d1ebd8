"""The registry's rules under kills and two writers, against plain dicts; the writers share the log, a list of records.

A writer that has begun fences the other one, reads the log to its end, and answers what it wrote. A kill leaves a change in the
log with all of its records or with none; compaction keeps the last record of each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from logflume.log.registry import RegistryError, changes
from logflume.log.registry.loader import Loader
from logflume.log.registry.records import Entry, decode, encode_key, encode_value
from logflume.log.registry.requests import SchemaRequest
from logflume.log.registry.state import State

SUBJECTS = ("a", "b", ":.c:a")


def text(n: int) -> str:
    return f'{{"type":"fixed","name":"F{n}","size":{n + 1}}}'


@dataclass
class Log:
    """Records as bytes, and which writer may append."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    epoch: int = 0


@dataclass
class Writer:
    """One instance: what it has read, and the epoch that it writes with."""

    log: Log
    state: State = field(default_factory=State)
    position: int = 0
    epoch: int = 0

    def read(self) -> None:
        self.state.apply([decode(key, value) for key, value in self.log.records[self.position :]])
        self.position = len(self.log.records)

    def begin(self) -> None:
        self.log.epoch += 1
        self.epoch = self.log.epoch
        self.read()

    def append(self, entries: tuple[Entry, ...]) -> bool:
        """Write a change as one transaction; False when this writer is fenced."""
        if self.epoch != self.log.epoch:
            return False
        self.log.records += [(encode_key(each.key), encode_value(each.value)) for each in entries]
        return True


class Registries(RuleBasedStateMachine):
    """`answered` is what clients were told: (context, id) to the schema, (subject, version) to the id."""

    writers = Bundle("writers")

    @initialize(target=writers)
    def first(self) -> Writer:
        self.log = Log()
        self.ids: dict[tuple[str, int], str] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.writer = Writer(self.log)
        self.writer.begin()
        return self.writer

    @rule(target=writers)
    def another_writer_begins(self) -> Writer:
        made = Writer(self.log)
        made.begin()
        return made

    @rule(writer=writers)
    def an_old_writer_begins_again(self, writer: Writer) -> None:
        writer.begin()

    @rule(writer=writers, subject=st.sampled_from(SUBJECTS), n=st.integers(0, 5), dies=st.sampled_from(("no", "before", "after")))
    def register(self, writer: Writer, subject: str, n: int, dies: str) -> None:
        writer.state.configs.clear()
        request = SchemaRequest(schema=text(n))
        change = changes.register(writer.state, Loader(writer.state), subject, request, normalize=False, force=True)
        if dies == "before" or not writer.append(change.entries):
            return
        writer.read()
        if dies == "after" and change.entries:
            return  # nobody was told
        found = change.answer
        assert found.schema == text(n)
        if writer.epoch == self.log.epoch:
            self.ids[subject.rpartition(":")[0], found.id] = found.schema
            self.versions[subject, found.version] = found.id

    @rule(writer=writers, subject=st.sampled_from(SUBJECTS), permanent=st.booleans(), version=st.integers(1, 8) | st.none())
    def delete(self, writer: Writer, subject: str, permanent: bool, version: int | None) -> None:
        try:
            if version is None:
                change = changes.delete_subject(writer.state, subject, permanent=permanent)
                gone = change.answer
            else:
                change = changes.delete_version(writer.state, subject, version, permanent=permanent)
                gone = [change.answer]
        except RegistryError:
            return
        if not writer.append(change.entries):
            return
        writer.read()
        if permanent:
            for each in gone:
                self.versions.pop((subject, each), None)

    @rule()
    def compact(self) -> None:
        """Keep the last record of each key. Readers that are behind must see it too, so all read first."""
        last = {key: n for n, (key, _) in enumerate(self.log.records)}
        kept = [record for n, record in enumerate(self.log.records) if last[record[0]] == n]
        assert self.rebuilt(kept).versions == self.rebuilt(self.log.records).versions

    @staticmethod
    def rebuilt(records: list[tuple[bytes, bytes | None]]) -> State:
        state = State()
        state.apply([decode(key, value) for key, value in records])
        return state

    @invariant()
    def what_was_answered_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        state = self.rebuilt(self.log.records)
        assert state.conflicts == 0, "an id never means two schemas"
        for (subject, version), id_ in self.versions.items():
            found = state.version(subject, version, deleted=True)
            if found is not None:
                assert found.id == id_
                assert found.schema == self.ids[subject.rpartition(":")[0], id_]
        live = {(each.subject, each.id) for name in state.versions for each in state.all_versions(name)}
        assert len(live) == sum(len(state.all_versions(name)) for name in state.versions), "a subject holds a schema once"


TestRegistries = pytest.mark.slow(Registries.TestCase)
TestRegistries.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
