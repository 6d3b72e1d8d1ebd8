"""Groups against plain models under Hypothesis: members that come, go, hang and restart, a disk that is slow, and crashes.

Offsets: the model is the list of appends; what may be read is its fold over those that are on disk. Membership: whoever is
told an assignment is told what the leader of that generation gave it, never two things; and once members are left in peace,
they all get one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]
partitions = st.sampled_from(PARTITIONS)
producers = st.sampled_from([7, 8])


class OffsetsModel(RuleBasedStateMachine):
    """Commits of two groups, plain and in transactions, with a disk that lags behind and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(journal=SimulatedJournal(partition_count=3, is_manual=True))
        self.log: list[tuple[int, str, Any]] = []
        self.waiting: list[tuple[int, Any]] = []
        self.next_value = 1

    @property
    def on_disk(self) -> int:
        return self.broker.journal.appended - self.broker.journal.in_flight

    def _append(self, group: str, entry: Any, answer: Any) -> None:
        index = self.broker.journal.appended - 1
        self.log.append((index, group, entry))
        self.waiting.append((index, answer))

    @rule(group=st.sampled_from("ab"), where=st.lists(partitions, min_size=1, unique=True))
    def commit(self, group: str, where: list[tuple[str, int]]) -> None:
        self.next_value += 1
        answer = self.broker.commit(dict.fromkeys(where, self.next_value), group=group)
        self._append(group, ("commit", where, self.next_value), answer)

    @rule(group=st.sampled_from("ab"), where=partitions, producer_id=producers)
    def commit_in_transaction(self, group: str, where: tuple[str, int], producer_id: int) -> None:
        self.next_value += 1
        answer = self.broker.txn_commit({where: self.next_value}, group=group, producer_id=producer_id)
        self._append(group, ("pending", producer_id, where, self.next_value), answer)

    @rule(group=st.sampled_from("ab"), producer_id=producers, is_commit=st.booleans())
    def end_transaction(self, group: str, producer_id: int, is_commit: bool) -> None:
        self.broker.end_transaction(is_commit=is_commit, producer_id=producer_id, group=group)
        partition = self.broker.groups.journal_partition(group)
        self.log.append((self.broker.journal.appended - 1, "*", ("end", producer_id, partition, is_commit)))

    @rule(count=st.integers(1, 4))
    def flush(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(kept=st.integers(0, 5))
    def crash(self, kept: int) -> None:
        self.broker.crash(kept=kept)
        self.log = [entry for entry in self.log if entry[0] < self.on_disk]
        self.waiting = []

    @invariant()
    def is_acknowledged_exactly_when_on_disk(self) -> None:
        for index, answer in self.waiting:
            assert (not isinstance(answer, Reply) or answer.is_done) == (index < self.on_disk)

    @invariant()
    def reads_the_fold_of_what_is_on_disk(self) -> None:
        for group in "ab":
            committed, held = self._fold(group, self.on_disk)
            on_the_way = {e[2] for i, g, e in self.log if i >= self.on_disk and g == group and e[0] == "pending"}
            unstable = held | on_the_way
            for where in PARTITIONS:
                assert self.broker.fetch(where, group=group) == {where: (committed.get(where, -1), ErrorCode.NONE)}
            assert self.broker.groups.unstable_partitions(group) == unstable

    def _fold(self, group: str, end: int) -> tuple[dict[Any, int], set[Any]]:
        """Return the committed offsets and the partitions with a pending one after the first `end` appends."""
        latest: dict[Any, tuple[int, int]] = {}
        pending: dict[int, dict[Any, tuple[int, int]]] = {}
        journal_partition = self.broker.groups.journal_partition(group)
        for index, own, entry in self.log:
            if index >= end:
                break
            if entry[0] == "commit" and own == group:
                latest.update(dict.fromkeys(entry[1], (index, entry[2])))
            elif entry[0] == "pending" and own == group:
                pending.setdefault(entry[1], {})[entry[2]] = (index, entry[3])
            elif entry[0] == "end" and entry[2] == journal_partition:
                for where, offset in pending.pop(entry[1], {}).items():
                    if entry[3]:
                        latest[where] = max(latest.get(where, offset), offset)
        return {where: value for where, (_, value) in latest.items()}, {w for held in pending.values() for w in held}


@dataclass(eq=False)
class Client:
    """A member as a well-behaved client library runs it."""

    instance: str | None
    member_id: str = ""
    generation: int = -1
    joining: Reply | None = None
    syncing: Reply | None = None
    has_assignment: bool = False
    leads: list[str] | None = field(default=None)


class MembershipModel(RuleBasedStateMachine):
    """Up to five members of one group."""

    def __init__(self) -> None:
        super().__init__()
        config = GroupConfig(initial_rebalance_delay_ms=20)
        self.broker = Broker(config=config, journal=SimulatedJournal(partition_count=1, is_manual=True))
        self.clients: list[Client] = []
        self.submitted: dict[int, list[dict[str, bytes]]] = {}
        self.told: dict[int, dict[str, bytes]] = {}
        self.instance_count = 0

    # -- what a client library does

    def _step(self, client: Client) -> None:
        """Let a client do what it would do next."""
        if client.joining is not None:
            if client.joining.is_done:
                answer, client.joining = client.joining.value, None
                self._on_joined(client, answer)
        elif client.syncing is not None:
            if client.syncing.is_done:
                answer, client.syncing = client.syncing.value, None
                self._on_synced(client, answer)
        elif client.generation < 0:
            self._join(client)
        elif not client.has_assignment:
            self._sync(client)
        else:
            error = self.broker.heartbeat(client.member_id, client.generation, instance=client.instance)
            self._on_error(client, error)

    def _join(self, client: Client) -> None:
        answer = self.broker.join(client.member_id, instance=client.instance)
        if isinstance(answer, Reply):
            client.joining = answer
        else:
            self._on_joined(client, answer)

    def _on_joined(self, client: Client, answer: Any) -> None:
        client.has_assignment = False
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error_code:
            self._on_error(client, ErrorCode(answer.error_code))
        else:
            client.member_id, client.generation = answer.member_id, answer.generation_id
            is_leader = answer.leader == answer.member_id and not answer.skip_assignment
            client.leads = [m.member_id for m in answer.members] if is_leader else None
            assert not is_leader or client.member_id in client.leads  # type: ignore[operator]

    def _sync(self, client: Client) -> None:
        assignments = {m: f"{client.generation}:{m}:{len(self.submitted)}".encode() for m in client.leads or ()}
        if client.leads is not None:
            self.submitted.setdefault(client.generation, []).append(assignments)
        answer = self.broker.sync(client.member_id, client.generation, assignments, instance=client.instance)
        if isinstance(answer, Reply):
            client.syncing = answer
        else:
            self._on_synced(client, answer)

    def _on_synced(self, client: Client, answer: Any) -> None:
        if answer.error_code:
            self._on_error(client, ErrorCode(answer.error_code))
            return
        client.has_assignment = True
        place = client.instance or client.member_id
        told = self.told.setdefault(client.generation, {})
        assert told.setdefault(place, answer.assignment) == answer.assignment, "a place has one assignment in a generation"
        given = [a for s in self.submitted.get(client.generation, []) for a in s.values()]
        assert answer.assignment in [*given, b""], "an assignment comes from the leader"

    def _on_error(self, client: Client, error: ErrorCode) -> None:
        if error:
            client.generation, client.has_assignment = -1, False
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    # -- what happens

    @initialize()
    def begin(self) -> None:
        self.clients.append(Client(None))

    @precondition(lambda self: len(self.clients) < 5)
    @rule(is_static=st.booleans())
    def start_member(self, is_static: bool) -> None:
        self.instance_count += is_static
        self.clients.append(Client(f"i{self.instance_count}" if is_static else None))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        if self.clients:
            self._step(data.draw(st.sampled_from(self.clients)))

    @rule()
    def step_all(self) -> None:
        for client in self.clients:
            self._step(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), says_goodbye=st.booleans())
    def stop_member(self, data: st.DataObject, says_goodbye: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        if says_goodbye and client.member_id and client.joining is None:
            self.broker.leave((client.member_id, client.instance))

    @precondition(lambda self: any(c.instance for c in self.clients))
    @rule(data=st.data())
    def restart_static_member(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients if c.instance]))
        self.clients[self.clients.index(client)] = Client(client.instance)

    @rule(delay_ms=st.sampled_from([5, 30, 2_000, 9_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)

    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.broker.crash(kept=kept)
        for client in self.clients:
            if client.joining is not None or client.syncing is not None:
                client.joining = client.syncing = None
                client.generation, client.has_assignment = -1, False
        group = self.broker.groups.group("g")
        durable = group.generation if group else 0
        self.told = {generation: told for generation, told in self.told.items() if generation <= durable}

    @invariant()
    def what_was_told_is_on_disk(self) -> None:
        """A generation in which somebody was told an assignment survives every crash."""
        if self.told:
            group = self.broker.groups.group("g")
            assert group is not None
            assert group.generation >= max(self.told)

    def teardown(self) -> None:
        """Left in peace, all members get an assignment of one generation."""
        for _ in range(60):
            self.broker.journal.flush()
            for client in self.clients:
                for _ in range(2):
                    self._step(client)
            self.broker.time.advance(2_000)
        if self.clients:
            group = self.broker.groups.group("g")
            assert group is not None
            assert group.state.value == "Stable", group
            assert all(c.has_assignment and c.generation == group.generation for c in self.clients)
            assert len(group.members) == len(self.clients)


TestOffsets = OffsetsModel.TestCase
TestOffsets.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMembership = MembershipModel.TestCase
TestMembership.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
