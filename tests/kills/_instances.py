"""The processes of a run, each with a state directory of its own: killed, started again, robbed of their disk."""

from __future__ import annotations

import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.kills._damage import damage

ENDING_S = 180.0
"""How long a process may take to end in order on a busy machine."""
DYING_S = 20.0
"""How long a process has to come to the step at which it kills itself; then it is killed where it is."""


class Instances:
    """`count` processes with the applications of some families, the same in each."""

    def __init__(self, address: str, path: Path, prefix: str, families: Sequence[str], count: int, *, has_kernels: bool) -> None:
        self._address, self._path, self._prefix, self._families = address, path, prefix, families
        self._has_kernels = has_kernels
        self.count = count
        self._processes = [self._started(number) for number in range(count)]

    def _started(self, number: int, *failpoint: str) -> subprocess.Popen[str]:
        form = "kernels" if self._has_kernels else "-"
        where = self._address, str(self.place(number)), self._prefix, ",".join(self._families)
        command = [sys.executable, "-m", "tests.kills._application", *where, form, *failpoint]
        with self._path.joinpath(f"{self._prefix}-{number}.log").open("a") as errors:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def place(self, number: int) -> Path:
        return self._path / self._prefix / str(number)

    def wait_until_running(self) -> None:
        for number in range(self.count):
            self._wait_for(number)

    def _wait_for(self, number: int, word: str = "running") -> None:
        output = self._processes[number].stdout
        assert output is not None
        line = output.readline()
        assert line == f"{word}\n", f"instance {number}: {line!r}"

    def check(self) -> None:
        """Raise AssertionError: an application has ended by itself, or its process has."""
        for number, process in enumerate(self._processes):
            assert process.stdout is not None
            if select.select([process.stdout], [], [], 0)[0]:
                line = process.stdout.readline()
                assert line == "running\n", f"instance {number}: {line!r}"
            assert process.poll() is None, f"instance {number} has ended: {process.returncode}"

    def kill(self, number: int) -> None:
        """SIGKILL, whatever it is doing."""
        self._processes[number].kill()
        self._processes[number].wait()

    def start(self, number: int, *failpoint: str, is_awaited: bool = True) -> None:
        """Start one again, in the other form: with kernels, or without."""
        self._has_kernels = not self._has_kernels
        self._processes[number] = self._started(number, *failpoint)
        if is_awaited:
            self._wait_for(number)

    def let_die(self, number: int, step: str, nth: int) -> bool:
        """Start one that kills itself; return whether it came there."""
        self.start(number, step, str(nth), is_awaited=False)
        try:
            return self._processes[number].wait(DYING_S) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            self.kill(number)
            return False

    def leave(self, number: int) -> None:
        """End one in order."""
        self._processes[number].send_signal(signal.SIGTERM)
        self._wait_for_end(number)

    def _wait_for_end(self, number: int) -> None:
        try:
            code = self._processes[number].wait(ENDING_S)
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, f"instance {number} was told to end, {code}"

    def lose_disk(self, number: int) -> None:
        """Remove the state of one that does not run."""
        shutil.rmtree(self.place(number), ignore_errors=True)

    def damage(self, number: int, chance: random.Random) -> str:
        """Damage what one that does not run has on disk; return what was done to it."""
        return damage(self.place(number), chance)

    def stop(self) -> None:
        """End all in order, when all state is on their disks: one that was struck last may still be restoring."""
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)
        for number in range(self.count):
            self._wait_for(number, "settled")
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for number in range(self.count):
            self._wait_for_end(number)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


COMMIT_STEPS = (
    "before-flush",
    "after-flush",
    "after-produce",
    "after-send-offsets",
    "after-log-commit",
    "before-store-batch",
    "after-store-batch",
)
KINDS = ("kill", "early", "step", "restore", "lose", "damage", "damage", "broker_killed", "both", "leave", "kill", "damage")
"""The methods of `Strikes`, those that come more often more often."""


class Broker(Protocol):
    """A broker process that can be killed and started again."""

    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Strikes:
    """What is done to a run, drawn from one source of random numbers. `done`: each in words, in order."""

    def __init__(
        self,
        broker: Broker,
        instances: Instances,
        chance: random.Random,
        *,
        most_pause_s: float,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self._broker, self._instances, self._chance, self._most_pause_s = broker, instances, chance, most_pause_s
        self._kinds, self._turns = kinds, list[str]()
        self.done: list[str] = []

    def strike(self) -> None:
        """Do the next: each of the kinds has its turn before one comes again."""
        if not self._turns:
            self._turns = self._chance.sample(self._kinds, len(self._kinds))
        name = self._turns.pop()
        number = self._chance.randrange(self._instances.count)
        words = getattr(self, f"_{name}")(number)
        self.done.append(f"{name} {number}{': ' if words else ''}{words or ''}")

    def _wait(self, most_s: float | None = None) -> None:
        time.sleep(self._chance.random() * (most_s or self._most_pause_s))

    def _kill(self, number: int) -> None:
        self._wait()
        self._instances.kill(number)
        self._instances.start(number)

    def _early(self, number: int) -> None:
        self._instances.kill(number)
        self._instances.start(number, is_awaited=False)
        self._wait(4.0)
        self._instances.kill(number)
        self._instances.start(number)

    def _step(self, number: int) -> str:
        step, nth = self._chance.choice(COMMIT_STEPS), self._chance.randrange(1, 12)
        self._instances.kill(number)
        has_come = self._instances.let_die(number, step, nth)
        self._instances.start(number)
        return f"{step} {nth}{'' if has_come else ' (not reached)'}"

    def _restore(self, number: int) -> str:
        self._instances.kill(number)
        self._instances.lose_disk(number)
        has_come = self._instances.let_die(number, "restore", nth := self._chance.randrange(1, 4))
        self._instances.start(number)
        return f"{nth}{'' if has_come else ' (not reached)'}"

    def _lose(self, number: int) -> None:
        self._wait()
        self._instances.kill(number)
        self._instances.lose_disk(number)
        self._instances.start(number)

    def _damage(self, number: int) -> str:
        self._wait()
        self._instances.kill(number)
        words = self._instances.damage(number, self._chance)
        self._instances.start(number)
        return words

    def _broker_down(self) -> None:
        self._broker.kill()
        self._wait(0.5)
        self._broker.start()

    def _broker_killed(self, _: int) -> None:
        self._wait()
        self._broker_down()

    def _both(self, number: int) -> None:
        self._wait()
        self._instances.kill(number)
        self._broker_down()
        self._instances.start(number)

    def _leave(self, number: int) -> None:
        self._wait()
        self._instances.leave(number)
        self._wait(3.0)
        self._instances.start(number)
