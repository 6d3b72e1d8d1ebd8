"""Any damage to any file of a data directory: the broker names it, or serves exactly what was acknowledged; never other bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logflume.log.errors import LogflumeError
from logflume.log.storage.testing.disk import SimulatedDisk

from ._simulated_broker import SimulatedBroker
from ._wire import batch

TOPICS = ("orders", "small")


def fill(broker: SimulatedBroker) -> dict[tuple[str, int], list[bytes]]:
    """Produce into two topics over several segments; return what was acknowledged."""
    acknowledged: dict[tuple[str, int], list[bytes]] = {}
    for name in TOPICS:
        assert broker.create(name, 2, **{"segment.bytes": "600", "retention.ms": "-1"}).error_code == 0
        for i in range(20):
            values = [b"%s-%d-%d" % (name.encode(), i, partition) for partition in range(2)]
            for answer, value in zip(broker.produce(name, *map(batch, values)), values, strict=True):
                assert answer.error_code == 0
                acknowledged.setdefault((name, answer.index), []).append(value)
    return acknowledged


def damage(disk: SimulatedDisk, path: str, rng: random.Random) -> str:
    """Harm a file in one of five ways; return which."""
    size = disk.size(path)
    kind = rng.choice(["flip", "cut", "grow", "zero", "remove"])
    if kind == "remove" or size == 0:
        disk.remove(path)
    elif kind == "flip":
        disk.flip_bit(path, rng.randrange(size), rng.randrange(8))
    elif kind == "cut":
        disk.cut_file(path, rng.randrange(size))
    elif kind == "grow":
        disk.append_bytes(path, rng.randbytes(rng.randint(1, 100)))
    else:
        start = rng.randrange(size)
        disk.open(path).write(start, [bytes(rng.randint(1, size - start))])
    return kind


def files(disk: SimulatedDisk, directory: str) -> list[str]:
    """Return all files below a directory."""
    found = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        found += files(disk, path) if disk.is_dir(path) else [path]
    return found


def last_segment(disk: SimulatedDisk, directory: str) -> str:
    return max(path for path in files(disk, directory) if path.endswith(".log"))


def start_error(broker: SimulatedBroker) -> LogflumeError | None:
    try:
        broker.start()
    except LogflumeError as error:
        return error
    return None


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(25))
def test_damage_is_named_or_harmless(tmp_path: Path, seed: int, is_clean: bool) -> None:
    rng = random.Random(seed)
    broker = SimulatedBroker(tmp_path)
    acknowledged = fill(broker)
    if is_clean:
        broker.close()
    else:
        broker.power_cut(rng)
        broker.close_directory()
    originals = broker.disk.snapshot()
    for path in files(broker.disk, str(tmp_path)):
        broker.disk.restore(originals)
        tails = {last_segment(broker.disk, f"{tmp_path}/{name}-{partition}") for name, partition in acknowledged}
        kind = damage(broker.disk, path, rng)
        error = start_error(broker)
        if error is not None:
            assert str(tmp_path) in str(error), f"{kind} {path}: {error}"
            continue
        for (name, partition), values in acknowledged.items():
            if broker.core.partition(name, partition) is None:
                assert str(tmp_path) in broker.core.troubles.by_partition[name, partition].cause, f"{kind} {path}"
                continue
            try:
                found = broker.values(name, partition)
            except LogflumeError:
                continue
            # Behind the last checkpoint of a killed broker, damage looks like a write that power loss cut short.
            is_tail = not is_clean and path in tails
            assert found == values[: len(found)] if is_tail else found == values, f"{kind} {path}: {name}-{partition}"
        broker.close_directory()
