"""What a newcomer's first mistakes look like: the line of his own file and one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume as lf
from logflume.log import InvalidInput, UnknownName
from logflume.streams.graph import loose_ends
from logflume.streams.runtime.handlers import StreamsError

from ._command import run, run_cold


class Flight(msgspec.Struct):
    carrier: str
    delay: int


MISSPELT = """\
import msgspec
import logflume as lf


class Flight(msgspec.Struct):
    carrier: str


app = lf.App("first", log="./data")
app.stream("flights", Flight).filter(lf.col.carier == "UA").to("ua")
app.run()
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "app.py"
    path.write_text(text)
    return path


def test_a_script_ends_with_the_users_lines_and_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, MISSPELT)
    failed = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert failed.returncode == 1
    assert f'File "{path}", line 10, in <module>' in failed.stderr
    assert failed.stderr.count("File ") == 1
    assert failed.stderr.splitlines()[-1].endswith("unknown column 'carier' of 'flights'; did you mean 'carrier'?")


def test_run_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, MISSPELT)
    failed = run("run", str(path), "--data", str(tmp_path / "data"), code=1)
    sentence, place = failed.stderr.splitlines()[-2:]
    assert sentence == "logflume run: unknown column 'carier' of 'flights'; did you mean 'carrier'?"
    assert place.strip().startswith(f"{path}:10: app.stream(")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda flights: flights.window(lf.tumbling(hours=1)), "unknown attribute 'window' of a stream; after group_by(...) or"),
        (lambda flights: flights.sum(lf.col.delay), "unknown attribute 'sum' of a stream; after group_by(...) or group_by_key()"),
        (lambda flights: flights.suppress(lf.until_window_closes()), "unknown attribute 'suppress' of a stream; after"),
        (lambda flights: flights.group_by_key().to("t"), "unknown attribute 'to' of a grouped stream; after count(), aggregate("),
        (lambda flights: flights.group_by_key().count().map_values(str).peek(print), "of a table; after to_stream() it has it"),
        (
            lambda flights: flights.fliter(lf.col.delay > 3),
            "unknown attribute 'fliter' of a stream; did you mean 'filter' or 'filter_not'?",
        ),
    ],
)
def test_a_method_of_another_step_says_which_step_is_missing(step: Callable[[Any], object], told: str) -> None:
    with pytest.raises(AttributeError) as failed:
        step(lf.App("steps").stream("flights", Flight))
    assert told in str(failed.value)


def test_few_names_are_all_told_where_none_is_near() -> None:
    app = lf.App("told")
    app.stream("flights", Flight).group_by_key().count(name="per-key").to("counts")
    driver = lf.TopologyTestDriver(app)
    with pytest.raises(UnknownName, match="unknown output topic 'xyz'; there is counts"):
        driver.output("xyz")


def test_a_result_that_nobody_takes_is_told_when_the_application_runs(caplog: pytest.LogCaptureFixture) -> None:
    app = lf.App("loose")
    flights = app.stream("flights", Flight)
    big, _ = flights.split(lf.col.delay > 100)  # what is left of a split need not be used
    big.to("big")
    flights.map_values(lambda flight: flight.delay)
    assert loose_ends(app.topology()) == ("flights-map",)
    with pytest.raises(InvalidInput), caplog.at_level("WARNING"):
        app.run(nosuch=1)
    assert "loose: nothing takes what 'flights-map' gives: .to(topic) writes it" in caplog.messages


def test_one_child_of_a_processor_may_be_left_unused() -> None:
    class Sorting(lf.Processor):
        def process(self, record: lf.Record) -> None:
            self.context.forward(record, child="big")

    app = lf.App("sorting")
    big, _ = app.stream("flights").process(Sorting, key=str, children=["big", "small"])
    assert set(loose_ends(app.topology())) == {"flights-Sorting-big", "flights-Sorting-small"}
    big.to("big")
    assert loose_ends(app.topology()) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import logflume as lf\napp = lf.App(\n", "SyntaxError: '(' was never closed"),
        ("import nosuch\n", "ModuleNotFoundError: No module named 'nosuch'"),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_run_shows_errors_of_the_file_as_python_does(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    ran = run_cold("run", str(path), "--data", str(tmp_path / "data"), code=1).stderr
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False).stderr
    assert ran.splitlines()[-1] == told
    assert ran.removeprefix("Traceback (most recent call last):\n") == plain.removeprefix("Traceback (most recent call last):\n")


@pytest.mark.parametrize("command", [("streams", "diff", "FILE"), ("streams", "reset"), ("run", "--workers", "2")])
def test_every_command_that_runs_a_file_shows_its_errors_alike(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = written(tmp_path, "import logflume\n1 / 0\n")
    args = [str(path) if arg == "FILE" else arg for arg in (*command, "FILE")]
    told = run_cold(*args, code=1).stderr
    assert told.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert [line for line in told.splitlines() if line.startswith("  File")] == [f'  File "{path}", line 2, in <module>']
    path.write_text(MISSPELT)
    assert f"{path}:10: app.stream(" in run_cold(*args, code=1).stderr


def test_an_unknown_topic_says_how_it_is_made(tmp_path: Path) -> None:
    run("topic", "create", "flights", "--data", str(tmp_path / "data"))
    for name, advice in (("flihgts", "; did you mean 'flights'?"), ("orders", "; `logflume topic create orders` makes it")):
        said = run("consume", name, "--data", str(tmp_path / "data"), code=1).stderr
        assert said.splitlines()[-1] == f"logflume consume: unknown topic {name!r}{advice}"


def test_a_test_whose_record_does_not_fit_its_class_is_told() -> None:
    app = lf.App("first")
    app.stream("a", Flight).to("b")
    with pytest.raises(StreamsError, match=r"node a, a offset 0: .*delay"):
        lf.TopologyTestDriver(app).input("a").send({"carrier": "UA", "delay": "late"})
    patient = lf.TopologyTestDriver(app, on_problem="skip")
    patient.input("a").send({"carrier": "UA", "delay": "late"})
    assert patient.problems == {"decode": 1}


def test_the_pace_of_spark_is_no_option_of_the_live_engine(tmp_path: Path) -> None:
    path = written(tmp_path, "import logflume as lf\n")
    assert "--every" in run("run", str(path), "--every", "1", code=1).stderr


def test_run_says_when_a_file_runs_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "import logflume as lf\n\napp = lf.App('first')\n")
    assert "expected an lf.App and, at the end of the file, app.run()" in run("run", str(path), code=1).stderr


def test_a_connector_says_once_why_it_failed_and_what_to_do(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    (tmp_path / "rows.toml").write_text(f'name = "rows"\nconnector = "file-source"\ntopic = "rows"\nfile = "{rows}"\n')
    connect = ("connect", "run", str(tmp_path / "rows.toml"), "--once", "--data", str(tmp_path / "data"))
    rows.write_text("a,b\n1,x\n")
    assert "rows: COMPLETED, 1 record\n" in run(*connect).stderr
    assert "nothing new since it ran last: `logflume connect reset rows` lets it begin anew" in run(*connect).stderr
    rows.write_text("a,b\n1,x\nbad\n")
    said = run(*connect, code=1).stderr
    assert "connector rows, task 0 failed: " in said
    assert said.count("expected 2 fields, found 1; correct the row") == 1
    assert "Traceback" not in said


def test_a_host_that_cannot_be_is_told_in_words(tmp_path: Path) -> None:
    said = run("serve", "--listen", "a..b:9092", "--data", str(tmp_path / "data"), code=1).stderr
    assert said.startswith("logflume serve: cannot listen on a..b:9092: ")
    assert said.count("\n") == 1


def test_an_argument_of_a_sink_that_nobody_knows_is_refused_where_it_stands() -> None:
    stream = lf.App("first").stream("a")
    with pytest.raises(UnknownName, match="unknown argument 'parttions' of to\\(\\); did you mean 'partitions'"):
        stream.to("zz", parttions=3)
    with pytest.raises(UnknownName, match="did you mean 'retention_ms'"):
        stream.to("zz", retention_sm="1")
    with pytest.raises(InvalidInput, match="retention_ms= of to\\(\\) is text"):
        stream.to("zz", retention_ms=3600000)  # type: ignore[arg-type]
    stream.to("zz", retention_ms="3600000", cleanup_policy="compact")


def test_the_face_has_what_a_first_test_needs() -> None:
    app = lf.App("first")
    app.stream("a").to("b")
    driver = lf.TopologyTestDriver(app)
    driver.input("a").send({"n": 1})
    assert driver.output("b").read()[0].value == {"n": 1}
    assert lf.EngineOptions().guarantee
    assert {"App", "TopologyTestDriver", "EngineOptions", "Stream"} <= set(dir(lf))
    assert not [name for name in dir(lf) if name.startswith("_")]


@pytest.mark.parametrize(
    ("mistake", "near"),
    [
        (lambda: lf.tumbling(minute=1), "tumbling() has no argument 'minute'; did you mean 'minutes'?"),
        (lambda: lf.hopping(minutes=2, advnce=1), "hopping() has no argument 'advnce'; did you mean 'advance'?"),
        (lambda: lf.sliding(xyz=1), "sliding() has no argument 'xyz'; it takes "),
    ],
)
def test_an_argument_that_does_not_exist_names_the_near_one(mistake: Callable[[], object], near: str) -> None:
    with pytest.raises(TypeError) as refused:
        mistake()
    assert str(refused.value).startswith(near)
    assert refused.traceback[-2].path == Path(__file__), "the line that is shown last but one is the user's"


def test_an_application_that_misses_its_topic_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logflume.log.default_broker", lambda: "127.0.0.1:9092")
    app = lf.App("lost", log=str(tmp_path / "data"))
    app.stream("flights", Flight).to("out")
    with pytest.raises(UnknownName, match="unknown topic 'flights'") as failed:
        app.run(state_dir=tmp_path / "state")
    where = f"looked for in {tmp_path / 'data'}; a broker listens on 127.0.0.1:9092: App('lost', log=\"127.0.0.1:9092\")"
    assert failed.value.__notes__ == [where]


def test_an_and_between_comparisons_without_parentheses_is_told() -> None:
    with pytest.raises(InvalidInput, match=r"each side in parentheses, \(a > 1\) & \(b < 5\)"):
        lf.App("x").stream("flights", Flight).filter(lf.col.delay > 1 & lf.col.delay < 5)


def test_a_topology_is_shown_shortly() -> None:
    app = lf.App("short")
    app.stream("flights", Flight).group_by(lf.col.carrier).count(name="per-carrier").to("counts")
    assert repr(app.topology()) == "Topology('short': flights, flights-by-carrier, per-carrier, counts)"
