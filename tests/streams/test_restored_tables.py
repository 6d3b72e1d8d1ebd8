"""Tables that joins look up, after the loss of the disk, restarts, and with less memory than rows: no row may be missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log.interfaces import Log
from logflume.streams import col
from tests.streams.running import embedded, read, running, until, write

USERS = 300


class User(msgspec.Struct):
    name: str


class Event(msgspec.Struct):
    n: int


class Order(msgspec.Struct):
    user: str


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        for topic in ("users", "events"):
            opened.admin().ensure_topic(topic, partitions=2)
        write(opened, "users", [(b"u%d" % n, b'{"name":"user %d"}' % n, 1000) for n in range(USERS)])
        yield opened


def join_app(*, by_column: bool = False) -> lf.App:
    """Join events with users by their key, or by a column of the table kept behind a projection."""
    app = lf.App("joining")
    users = app.table("users", User)
    if by_column:
        users = users.select(name=col.name)
    app.stream("events", Event).join(users).to("joined")
    return app


def send_events(log: Log, count: int, *, start: int) -> None:
    write(log, "events", [(b"u%d" % (n % USERS), b'{"n":%d}' % n, 2000) for n in range(start, start + count)])


def joined(log: Log) -> dict[int, str]:
    """Return n -> name of all results so far."""
    rows = [msgspec.json.decode(record.value or b"") for record in read(log, "joined")]
    found = {row["n"]: row["name"] for row in rows}
    assert len(found) == len(rows), "a result was doubled"
    return found


def expected(count: int) -> dict[int, str]:
    return {n: f"user {n % USERS}" for n in range(count)}


@pytest.mark.parametrize("by_column", [False, True])
def test_a_restored_table_is_there_after_the_next_restart(log: Log, tmp_path: Path, by_column: bool) -> None:
    state = tmp_path / "state"
    for round in range(4):
        send_events(log, 400, start=400 * round)
        with running(join_app(by_column=by_column), log, state) as engine:
            until(lambda wanted=400 * (round + 1): len(joined(log)) == wanted, engine)
            until(lambda: engine.status().lag_records == 0, engine)
        if round == 0:
            shutil.rmtree(state)
    assert joined(log) == expected(1600)


def test_a_restored_table_larger_than_its_memory_keeps_its_rows(log: Log, tmp_path: Path) -> None:
    write(log, "users", [(b"x%d" % n, b'{"name":"%s"}' % (b"long" * 50), 1000) for n in range(20_000)])
    for round in range(3):
        send_events(log, 400, start=400 * round)
        with running(join_app(), log, tmp_path / "state", memory_bytes=1 << 20) as engine:
            until(lambda wanted=400 * (round + 1): len(joined(log)) == wanted, engine)
            until(lambda: sum(task.entries_in_memory for task in engine.status().tasks) < 20_000, engine)
        if round == 0:
            shutil.rmtree(tmp_path / "state")
    assert joined(log) == expected(1200)


def test_rows_that_changed_and_went_while_nobody_ran_are_as_they_are_in_the_topic(log: Log, tmp_path: Path) -> None:
    state = tmp_path / "state"
    send_events(log, 10, start=0)
    with running(join_app(), log, state) as engine:
        until(lambda: len(joined(log)) == 10, engine)
    shutil.rmtree(state)
    write(log, "users", [(b"u1", None, 1500), (b"u2", b'{"name":"new"}', 1500), (b"u3", b"not json", 1500)])
    for start in (USERS, 2 * USERS):
        send_events(log, 5, start=start)
        with running(join_app(), log, state) as engine:
            until(lambda n=start + 4: n in joined(log), engine)
            until(lambda: engine.status().lag_records == 0, engine)
    rows = joined(log)
    for start in (USERS, 2 * USERS):
        assert start + 1 not in rows, "a deleted user"
        assert rows[start + 2] == "new"
        assert rows[start + 3] == "user 3", "what cannot be decoded changes nothing, restored as processed"


def test_two_instances_that_take_turns_lose_nothing(log: Log, tmp_path: Path) -> None:
    for round in range(3):
        sent = 600 * round
        with running(join_app(), log, tmp_path / "a") as first:
            send_events(log, 200, start=sent)
            until(lambda sent=sent: len(joined(log)) == sent + 200, first)
            with running(join_app(), log, tmp_path / "b") as second:
                until(lambda: len(second.status().tasks) == 1 == len(first.status().tasks), first, second)
                send_events(log, 200, start=sent + 200)
                until(lambda sent=sent: len(joined(log)) == sent + 400, first, second)
            until(lambda: len(first.status().tasks) == 2, first)
            send_events(log, 200, start=sent + 400)
            until(lambda sent=sent: len(joined(log)) == sent + 600, first)
        if round == 0:
            shutil.rmtree(tmp_path / "b")
    assert joined(log) == expected(1800)


def test_who_asked_for_a_row_is_told_of_its_changes_after_a_restore_too(log: Log, tmp_path: Path) -> None:
    app = lf.App("asking")
    app.table("orders", Order).left_join(app.table("users", User), on=col.user, prefix="of_").to("told")
    log.admin().ensure_topic("orders", partitions=2)
    write(log, "orders", [(b"o%d" % n, b'{"user":"u%d"}' % (n % USERS), 2000) for n in range(2 * USERS)])

    def told() -> dict[bytes | None, str]:
        return {record.key: msgspec.json.decode(record.value or b"")["of_name"] for record in read(log, "told")}

    for name in ("first", "second", "third"):
        if name != "first":
            write(log, "users", [(b"u7", b'{"name":"%s"}' % name.encode(), 3000)])
        expected = {b"o%d" % n: f"user {n % USERS}" for n in range(2 * USERS)}
        if name != "first":
            expected |= dict.fromkeys([b"o7", b"o307"], name)
        with running(app, log, tmp_path / "state") as engine:
            until(lambda expected=expected: told() == expected, engine)
            until(lambda: engine.status().lag_records == 0, engine)
        if name == "first":
            shutil.rmtree(tmp_path / "state")
