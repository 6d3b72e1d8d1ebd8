"""Where commands begin to read, and the words that people bring from Apache Kafka's tools: in this process, on a directory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from logflume.cli import main
from logflume.cli.consume import last_records
from logflume.cli.produce import IN_FLIGHT_MAX
from logflume.log import TopicPartition, connect

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A topic with a record of each of three days in two partitions, and where it is."""
    where = tmp_path_factory.mktemp("dated") / "data"
    with connect(where) as log, log.producer() as producer:
        log.admin().create_topic("dated", partitions=2)
        for day in (1, 2, 3):
            producer.send("dated", b"%d" % day, partition=day % 2, timestamp_ms=day * 86_400_000)
    return ("dated", "--data", str(where))


def out_of(capsys: Captured, *args: str) -> list[str]:
    capsys.readouterr()
    assert main(args) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: Captured, *args: str, code: int = 1) -> str:
    capsys.readouterr()
    assert main(args) == code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("earliest", "123"),
        ("latest", ""),
        ("1", "3"),
        ("-1", "23"),
        ("1970-01-03", "23"),
        ("1970-01-04T00:00Z", "3"),
        ("1970-01-04T00:00:00.001", ""),
        ("1970-01-04T02:00+02:00", "3"),
    ],
)
def test_reading_begins_at_a_word_an_offset_or_a_time(capsys: Captured, dated: tuple[str, ...], place: str, values: str) -> None:
    assert sorted(line[-1] for line in out_of(capsys, "consume", *dated, "--from", place)) == list(values)


@pytest.mark.parametrize(
    "place", ["yesterday", "1969-12-31", "--5", "1970-01-01T99:00", "", "9" * 20, "-" + "9" * 20, "-" + "9" * 5000]
)
def test_a_place_that_is_none_is_refused_with_what_is_one(capsys: Captured, dated: tuple[str, ...], place: str) -> None:
    assert "--from expects" in refused(capsys, "consume", *dated, f"--from={place}")


def test_reading_waits_for_more_until_none_came_for_the_time_out(capsys: Captured, dated: tuple[str, ...]) -> None:
    assert len(out_of(capsys, "consume", *dated, "--timeout", "0.2")) == 3
    assert "not both" in refused(capsys, "consume", *dated, "--timeout", "1", "--follow")


def test_a_group_is_set_to_the_same_places(capsys: Captured, dated: tuple[str, ...]) -> None:
    topic, *where = dated
    for place, offsets in (("1970-01-03", [0, 1]), ("latest", [1, 2]), ("-1", [0, 1]), ("earliest", [0, 0])):
        lines = out_of(capsys, "group", "reset", "readers", "--topic", topic, "--to", place, "--json", *where)
        assert [json.loads(line)["after"] for line in lines] == offsets
    beyond = refused(capsys, "group", "reset", "readers", "--topic", topic, "--to", "2", *where)
    assert "partition 0 of dated holds 0 to 1, not 2" in beyond


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("consume", "t", "--from-beginning"), "what is done anyway"),
        (("consume", "t", "--max-messages=3"), "--limit N"),
        (("topic", "--create"), "`create`, a command without dashes"),
        (("topic", "list", "--bootstrap-server", "h:1"), "--bootstrap HOST:PORT"),
        (("group", "reset", "g", "--topic", "t", "--to-earliest"), "--to earliest"),
        (("topic", "alter", "t", "--partitions", "4"), "`logflume topic add-partitions NAME --total N`"),
    ],
)
def test_the_words_of_kafkas_tools_are_answered_with_ours(capsys: Captured, args: tuple[str, ...], hint: str) -> None:
    assert hint in refused(capsys, *args, code=2)


def test_an_option_that_the_command_has_itself_is_not_answered(capsys: Captured) -> None:
    assert "of Kafka is here" not in refused(capsys, "sql", "--execute", "SELECT 1;", "--nonsense", code=2)


def test_what_one_sees_of_an_application_once_is_an_option(capsys: Captured, dated: tuple[str, ...]) -> None:
    assert "no instance of 'nothing' answers" in refused(capsys, "streams", "top", "nothing", "--once", *dated[1:])


def test_the_last_records_are_records_and_no_markers_of_transactions(
    capsys: Captured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = tmp_path_factory.mktemp("marked") / "data"
    with connect(where) as log, log.producer(transactional_id="t") as producer:
        log.admin().create_topic("marked")
        log.admin().create_topic("bare")
        producer.init_transactions()
        for number in range(20):
            producer.begin_transaction()
            producer.send("marked", b"%d" % number)
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
    for count, values in ((1, ["18"]), (3, ["14", "16", "18"]), (99, [str(number) for number in range(0, 20, 2)]), (0, [])):
        lines = out_of(capsys, "consume", "marked", "--from", f"-{count}", "--data", str(where))
        assert [line.split()[-1] for line in lines] == values
    assert out_of(capsys, "consume", "bare", "--from", "-2", "--data", str(where)) == []


@pytest.mark.parametrize(
    ("line", "cause"), [("broken", "no key separator ':': 'broken'"), ("k:" + "x" * 1_048_600, "1048602 bytes")]
)
def test_a_line_that_is_no_record_says_how_many_before_it_are_written(
    capsys: Captured, tmp_path: Path, line: str, cause: str
) -> None:
    where = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t")
    (tmp_path / "lines").write_text(f"a:1\nb:2\n{line}\nc:3\n")
    said = refused(capsys, "produce", "t", "-K", ":", "--file", str(tmp_path / "lines"), *where)
    assert "line 3: " in said
    assert cause in said
    assert "lines before it that are written: 2" in said
    assert len(out_of(capsys, "consume", "t", *where)) == 2


def test_a_line_that_the_broker_refuses_is_named_with_how_many_are_written(capsys: Captured, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t")
    (tmp_path / "lines").write_text("ok\n" + "x" * 1_048_576 + "\nlast\n")
    said = refused(capsys, "produce", "t", "--file", str(tmp_path / "lines"), *where)
    assert "MESSAGE_TOO_LARGE" in said
    assert "line 2 was refused: MESSAGE_TOO_LARGE" in said
    written = [line.split()[-1] for line in out_of(capsys, "consume", "t", *where)]
    assert written in (["ok"], ["ok", "last"]), "the last line may have been on its way already"
    assert f"written are {len(written)} of the {len(written) + 1} lines read" in said


def test_every_line_that_is_refused_is_named_and_no_more_is_read(capsys: Captured, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t", configs={"max.message.bytes": "200"})
    long = "x" * 300
    (tmp_path / "lines").write_text(f"a\n{long}\n{long}\n" + "b\n" * (10 * IN_FLIGHT_MAX))
    said = refused(capsys, "produce", "t", "--file", str(tmp_path / "lines"), *where)
    assert all(f"line {number} was refused: MESSAGE_TOO_LARGE" in said for number in (2, 3))
    match = re.search(r"written are ([0-9,]+) of the ([0-9,]+) lines read; the lines behind were not read", said)
    assert match is not None, said
    written, read = (int(number.replace(",", "")) for number in match.groups())
    assert written == read - 2
    assert read <= IN_FLIGHT_MAX + 3
    assert len(out_of(capsys, "consume", "t", *where)) == written


def test_of_many_refused_lines_the_first_are_named_and_all_are_counted(capsys: Captured, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t", configs={"max.message.bytes": "200"})
    (tmp_path / "lines").write_text(("x" * 300 + "\n") * 30)
    said = refused(capsys, "produce", "t", "--file", str(tmp_path / "lines"), *where)
    assert said.count("was refused: ") == 10
    assert re.search(r"20 more were refused", said), said
    assert "written are 0 of the 30 lines read" in said


def test_a_line_that_is_no_record_is_told_beside_one_that_the_broker_refuses(capsys: Captured, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t", configs={"max.message.bytes": "200"})
    (tmp_path / "lines").write_text(f"a:{'x' * 300}\nb:{'x' * 300}\nbroken\n")
    said = refused(capsys, "produce", "t", "-K", ":", "--file", str(tmp_path / "lines"), *where)
    assert "line 3: no key separator ':': 'broken'; lines before it that are written: 0" in said
    assert "line 1 was refused: MESSAGE_TOO_LARGE" in said


def test_the_last_records_are_found_where_the_end_is_lower_by_now(tmp_path: Path) -> None:
    tp = TopicPartition("t", 0)
    with connect(tmp_path / "data") as log, log.producer() as producer:
        log.admin().create_topic("t")
        for number in range(3):
            producer.send("t", b"%d" % number)
        producer.flush()
        with log.consumer() as consumer:
            assert last_records(consumer, log.admin(), {tp: 0}, {tp: 5}, 2, committed=True) == {tp: 1}


@pytest.mark.parametrize("names", ["its own log", "the option's", "the option's, not the environment's"])
def test_an_application_is_reset_in_its_log(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    data, file = tmp_path / "kept", tmp_path / "app.py"
    with connect(data) as log:
        log.admin().create_topic("delays-counts-changelog")
    own = f", log={str(data)!r}" if names == "its own log" else ""
    file.write_text(
        f"import logflume as lf\n\napp = lf.App('delays'{own})\n"
        "app.stream('flights').group_by_key().count(name='counts').to('out')\napp.run()\n"
    )
    monkeypatch.chdir(tmp_path)
    if names == "the option's, not the environment's":
        monkeypatch.setenv("LOGFLUME_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("LOGFLUME_DATA", str(tmp_path / "elsewhere"))
    option = () if own else ("--data", str(data))
    assert "removed: delays-counts-changelog" in out_of(capsys, "streams", "reset", str(file), *option)[-1]
    with connect(data) as log:
        assert log.admin().list_topics(include_internal=True) == []
