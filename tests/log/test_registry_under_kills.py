"""A model of the registry while its instances are killed, and while two of them believe that they write: plain dicts on this
side, processes of `logflume registry serve` over one broker on the other.

Each client has subjects of its own and does one thing at a time, so it knows what they hold. Where it was not answered, a change
has been made or has not, and the subject is left alone until the end. Ids are everybody's.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

import httpx
import pytest

from ._registry import Rest
from ._server_process import ServerProcess
from .test_registry_instances import instance, is_writer

Subject = dict[int, tuple[str, bool]]
"""What a subject holds: version -> (name of its schema, whether it is deleted)."""


@dataclass
class Change:
    """What is asked for, and what the subject holds afterwards, given the answer."""

    method: str
    path: str
    after: Callable[[object], Subject]
    body: object = None


@dataclass
class Doubt:
    """A change that was not answered: the subject before it, and the schema or the subject after it."""

    before: Subject
    after: Subject | str

    def allows(self, found: Subject) -> bool:
        if isinstance(self.after, dict):
            return found in (self.before, self.after)
        new = [version for version in found if version not in self.before]
        return found == self.before or (len(new) == 1 and found == {**self.before, new[0]: (self.after, False)})


@dataclass
class Client:
    """Changes its own subjects through any instance. What it was told is in `sure`, what it was not told in `doubts`."""

    n: int
    calls: list[Rest]
    sure: dict[str, Subject] = field(default_factory=dict)
    doubts: dict[str, Doubt] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    answered: int = 0

    def __post_init__(self) -> None:
        self.random, self.numbers = random.Random(self.n), count()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            while len(self.sure) - len(self.doubts) < 3:
                self.sure[f"{self.n}-{next(self.numbers)}"] = {}
            self.step(self.random.choice([name for name in self.sure if name not in self.doubts]))

    def step(self, subject: str) -> None:
        held, roll = self.sure[subject], self.random.random()
        live = [version for version, (_, is_deleted) in held.items() if not is_deleted]
        gone = [version for version, (_, is_deleted) in held.items() if is_deleted]
        if roll < 0.6 or not live:
            again = [held[version][0] for version in live]
            name = self.random.choice(again) if again and roll < 0.2 else f"F{self.n}x{next(self.numbers)}"
            body = {"schema": json.dumps({"type": "fixed", "name": name, "size": 8})}
            self.make(subject, Change("POST", "/versions", lambda told: self.registered(held, name, told), body), name)
        elif roll < 0.8 or not gone:
            version = self.random.choice(live)
            after = {**held, version: (held[version][0], True)}
            self.make(subject, Change("DELETE", f"/versions/{version}", lambda _: after), after)
        else:
            version = self.random.choice(gone)
            left = {each: what for each, what in held.items() if each != version}
            self.make(subject, Change("DELETE", f"/versions/{version}?permanent=true", lambda _: left), left)

    def registered(self, held: Subject, name: str, told: object) -> Subject:
        assert isinstance(told, dict)
        known = [version for version, what in held.items() if what == (name, False)]
        assert [told["version"]] == known or (not known and told["version"] not in held), (held, name, told)
        assert self.ids.setdefault(told["id"], name) == name
        return {**held, told["version"]: (name, False)}

    def make(self, subject: str, change: Change, after: Subject | str) -> None:
        call = self.random.choice(self.calls)
        try:
            status, told = call(change.method, f"/subjects/{subject}{change.path}", change.body)
        except httpx.TransportError:
            status, told = 0, None
        if status == 200:
            self.sure[subject] = change.after(told)
            self.answered += 1
            self.read_back(call, subject)
        else:
            assert status == 0 or status >= 500, (subject, change, status, told)
            self.doubts[subject] = Doubt(self.sure[subject], after)

    def read_back(self, call: Rest, subject: str) -> None:
        """Who was answered reads it at once, from whom it was answered by."""
        try:
            assert held_by(call, subject) == self.sure[subject]
        except httpx.TransportError:
            return


def held_by(call: Rest, subject: str) -> Subject:
    found: Subject = {}
    for query, is_deleted in (("?deleted=true", True), ("", False)):
        status, versions = call("GET", f"/subjects/{subject}/versions{query}")
        assert status in (200, 404), versions
        for version in versions if status == 200 else ():
            name = found[version][0] if version in found else name_of(call, subject, version)
            found[version] = (name, is_deleted)
    return found


def name_of(call: Rest, subject: str, version: int) -> str:
    return str(json.loads(call.ok("GET", f"/subjects/{subject}/versions/{version}?deleted=true")["schema"])["name"])


class Traffic:
    """Two clients at work in threads of their own."""

    def __init__(self, addresses: list[str]) -> None:
        self.clients = [Client(n, [Rest(address) for address in addresses]) for n in range(2)]
        self.stopping, self.failures = threading.Event(), list[BaseException]()
        self.threads = [threading.Thread(target=self.work, args=(client,)) for client in self.clients]
        for each in self.threads:
            each.start()

    def work(self, client: Client) -> None:
        try:
            client.run(self.stopping)
        except BaseException as error:  # shown by the test  # noqa: BLE001
            self.failures.append(error)

    def goes_on(self) -> None:
        """Return when each client was answered some more."""
        wanted = [client.answered + 8 for client in self.clients]
        for client, least in zip(self.clients, wanted, strict=True):
            self.until(lambda client=client, least=least: client.answered >= least)  # type: ignore[misc]

    def until(self, condition: Callable[[], bool]) -> None:
        waited = 0.0
        while not condition():
            assert not self.failures, self.failures
            assert waited < 120
            self.stopping.wait(0.05)
            waited += 0.05

    def end(self) -> None:
        self.stopping.set()
        for each in self.threads:
            each.join(120)
        assert not self.failures, self.failures


@pytest.mark.slow
def test_what_was_answered_stays_through_kills_and_two_writers(server: ServerProcess, topic: str) -> None:
    with ExitStack() as stack:
        running: dict[str, subprocess.Popen[str]] = {}
        for _ in range(2):
            rest, process = stack.enter_context(instance(server, topic))
            running[rest.address] = process
        rest.ok("PUT", "/config", {"compatibility": "NONE"})
        traffic = Traffic(list(running))
        stack.callback(traffic.stopping.set)

        def writer() -> str:
            return next(address for address in running if is_writer(Rest(address)))

        def kill(address: str) -> None:
            running[address].kill()
            running[address].wait()
            listen = address.removeprefix("http://")
            _, running[address] = stack.enter_context(instance(server, topic, listen=listen))
            traffic.goes_on()

        traffic.goes_on()
        kill(writer())
        kill(next(address for address in running if address != writer()))
        old = writer()
        other = next(address for address in running if address != old)
        running[old].send_signal(signal.SIGSTOP)  # it goes on believing that it writes
        try:
            traffic.until(lambda: is_writer(Rest(other)))
        finally:
            running[old].send_signal(signal.SIGCONT)
        traffic.goes_on()
        kill(writer())
        traffic.end()
    with instance(server, topic) as (again, _):
        check(again, traffic.clients)


def check(again: Rest, clients: list[Client]) -> None:
    """Compare what a new instance reads in the log with all that was told."""
    names: dict[int, str] = {}
    for client in clients:
        assert client.answered > 30
        for subject, held in client.sure.items():
            found = held_by(again, subject)
            assert client.doubts[subject].allows(found) if subject in client.doubts else found == held, (subject, held, found)
        for id_, name in client.ids.items():
            assert names.setdefault(id_, name) == name, "an id is given once"
    for id_, name in names.items():
        status, found = again("GET", f"/schemas/ids/{id_}")
        assert status == 404 or json.loads(found["schema"])["name"] == name
