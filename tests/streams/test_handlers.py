"""Handlers: what an application does with records that cannot be decoded, processed or put out, and with its own errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, UnknownName
from logflume.log.interfaces import Log
from logflume.streams.runtime import EngineOptions, PoisonRecord, Problem, StreamsError
from tests.streams.running import embedded, read, running, until, write

OVER_A_MEGABYTE = 1_100_000


class Row(msgspec.Struct):
    n: int


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in")
        yield opened


def app() -> lf.App:
    made = lf.App("handled")
    made.stream("in", Row, key=str).map_values(lambda row: "x" * (10 // row.n)).to("out")
    return made


def test_each_kind_of_problem_has_its_handler_which_sees_record_and_cause(log: Log, tmp_path: Path) -> None:
    seen: list[Problem] = []

    def skip(problem: Problem) -> str:
        seen.append(problem)
        return "skip"

    made = lf.App("handled")
    made.stream("in", Row, key=str).map_values(lambda row: 10 // row.n * "x" * OVER_A_MEGABYTE).to("out")
    write(log, "in", [(b"a", b"broken", 1), (b"b", b'{"n":0}', 2), (b"c", b'{"n":10}', 3), (b"d", b'{"n":11}', 4)])
    options = {"on_problem": "stop", "on_decode": skip, "on_process": skip, "on_produce": skip}
    with running(made, log, tmp_path / "state", **options) as engine:
        until(lambda: len(read(log, "out")) == 1 and engine.status().commit.commits, engine)
        assert engine.status().dropped == {"decode": 1, "callable": 1, "refused": 1}
    assert [(problem.reason, problem.record and problem.record.key) for problem in seen] == [
        ("decode", b"a"), ("callable", b"b"), ("refused", b"c"),
    ]  # fmt: skip
    assert isinstance(seen[1].cause, ZeroDivisionError)
    assert (seen[0].topic, seen[0].offset, seen[2].topic) == ("in", 0, "out")


def test_a_handler_decides_record_by_record(log: Log, tmp_path: Path) -> None:
    def keep_going_before(limit: int) -> Any:
        return lambda problem: "skip" if problem.offset < limit else "stop"

    write(log, "in", [(b"a", b"broken", 1), (b"b", b'{"n":5}', 2), (b"c", b"broken", 3)])
    first = running(app(), log, tmp_path / "state", on_decode=keep_going_before(2))
    with first as engine, pytest.raises(PoisonRecord, match="in-0 offset 2"):
        engine.wait(timeout_s=60)
    with running(app(), log, tmp_path / "state", on_decode=keep_going_before(3)) as engine:
        assert [record.value for record in until(lambda: read(log, "out"), engine)] == [b'"xx"']


@pytest.mark.parametrize(
    ("handler", "message"),
    [(lambda _: "perhaps", "must return 'skip' or 'stop', not 'perhaps'"), (lambda _: 1 / 0, "raises ZeroDivisionError")],
)
def test_a_handler_that_breaks_its_contract_stops_the_application(log: Log, tmp_path: Path, handler: Any, message: str) -> None:
    write(log, "in", [(b"a", b"broken", 1)])
    with running(app(), log, tmp_path / "state", on_decode=handler) as engine, pytest.raises(StreamsError, match=message):
        engine.wait(timeout_s=60)


def test_an_error_of_the_application_restarts_it_or_ends_it(log: Log, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def twice(error: BaseException) -> str:
        errors.append(error)
        return "restart" if len(errors) < 3 else "stop"

    write(log, "in", [(b"a", b"broken", 1)])
    with running(app(), log, tmp_path / "state", on_problem="stop", on_uncaught=twice) as engine, pytest.raises(PoisonRecord):
        engine.wait(timeout_s=60)
    assert len(errors) == 3
    assert engine.status().commit.aborts == 3


def test_settings_that_are_neither_policy_nor_function_are_refused() -> None:
    with pytest.raises(UnknownName, match="skip"):
        EngineOptions(on_decode="skp")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="or a function"):
        EngineOptions(on_uncaught=3)  # type: ignore[arg-type]
