"""Records that could not be processed: kept with what they were and why, and put back, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.cli import main
from logflume.log import InvalidInput
from logflume.log.client.consumer import Consumer
from logflume.log.interfaces import Log
from logflume.log.records import Record
from logflume.log.schemas import MemoryRegistry
from logflume.streams.runtime import replay
from tests.streams.running import embedded, read, running, until, write

GOOD, BAD = b'{"n":"7"}', b"no JSON"


class Row(msgspec.Struct):
    n: str


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedded(tmp_path / "data") as opened:
        opened.admin().ensure_topic("in", partitions=3)
        yield opened


def app() -> lf.App:
    made = lf.App("strict")
    made.stream("in", Row, key=str).map_values(lambda row: int(row.n)).to("out")
    return made


def facts(record: Record) -> dict[str, str]:
    return {name.removeprefix("__streams.errors."): (value or b"").decode() for name, value in record.headers}


def run_until_dead(log: Log, state: Path, wanted: int) -> list[Record]:
    with running(app(), log, state, dead_letter_topic="dead") as engine:
        return list(until(lambda: found if len(found := read(log, "dead")) >= wanted else None, engine))


def test_a_dead_letter_says_what_it_was_and_why(log: Log, tmp_path: Path) -> None:
    write(log, "in", [(b"a", BAD, 5), (b"b", b'{"n":"seven"}', 6), (b"c", GOOD, 7)])
    letters = {record.key: record for record in run_until_dead(log, tmp_path / "state", 2)}
    assert (letters[b"a"].value, letters[b"a"].timestamp_ms) == (BAD, 5)
    decode, call = facts(letters[b"a"]), facts(letters[b"b"])
    assert (decode["topic"], decode["reason"], decode["offset"]) == ("in", "decode", "0")
    assert (call["reason"], call["exception"]) == ("callable", "builtins.ValueError")
    assert "invalid literal" in call["message"]
    assert "int(row.n)" in call["stacktrace"]


def test_dead_letters_of_a_registered_format_keep_their_bytes_and_schema_ids(log: Log, tmp_path: Path) -> None:
    registry = MemoryRegistry()
    schema = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "string"}]}
    schema_id = registry.register("in-value", "AVRO", json.dumps(schema))
    frame = schema_id.to_bytes(5, "big")
    in_header = ("__value_schema_id", frame)
    with log.producer() as producer:
        producer.send("in", frame + b"\x027", key=b"good", partition=0)
        producer.send("in", frame + b"\x0e7", key=b"framed", partition=0)
        producer.send("in", b"\x0e7", key=b"bare", headers=[in_header], partition=0)
    made = lf.App("registered", log=log, registry=registry.location)
    made.stream("in", Row, format="AVRO").to("out", format="JSON")
    with running(made, log, tmp_path / "state", dead_letter_topic="dead") as engine:
        until(lambda: len(read(log, "dead")) == 2 and len(read(log, "out")) == 1, engine)
    letters = {record.key: record for record in read(log, "dead")}
    assert {key: letter.value for key, letter in letters.items()} == {b"framed": frame + b"\x0e7", b"bare": b"\x0e7"}
    assert letters[b"bare"].headers[0] == in_header
    assert f"Avro schema {schema_id}" in facts(letters[b"framed"])["message"]
    assert replay(log, "dead") == {"in": 2}
    back = {(record.key, record.value, record.headers) for record in read(log, "in")[-2:]}
    assert back == {(b"framed", frame + b"\x0e7", ()), (b"bare", b"\x0e7", (in_header,))}


def test_dead_letters_go_back_where_they_came_from_once(log: Log, tmp_path: Path) -> None:
    write(log, "in", [(b"a", BAD, 5), (b"b", GOOD, 6), (b"c", BAD, 7)])
    run_until_dead(log, tmp_path / "state", 2)
    places = {record.key: record.partition for record in read(log, "in")}
    assert replay(log, "dead") == {"in": 2}
    back = read(log, "in")[:]
    assert sorted((r.key, r.value, r.timestamp_ms, r.headers) for r in back if r.value == BAD) == sorted(
        [(b"a", BAD, 5, ()), (b"c", BAD, 7, ())] * 2
    )
    assert all(places[record.key] == record.partition for record in back)
    assert replay(log, "dead") == {}


def test_letters_that_come_back_meanwhile_wait_for_the_next_replay(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with log.producer() as producer:

        def keep(value: bytes) -> None:
            producer.send("dead", value, headers=(("__streams.errors.topic", b"in"),))
            producer.flush()

        log.admin().create_topic("dead", partitions=1)
        keep(b"first")
        polled, poll = [], Consumer.poll

        def noted(consumer: Consumer, **options: Any) -> Any:
            if not polled:
                keep(b"second")
            polled.append(1)
            return poll(consumer, **options)

        monkeypatch.setattr(Consumer, "poll", noted)
        assert replay(log, "dead") == {"in": 1}
        assert replay(log, "dead") == {"in": 1}
    assert sorted(record.value or b"" for record in read(log, "in")) == [b"first", b"second"]


def test_a_replay_has_a_limit_and_goes_on_behind_it(log: Log, tmp_path: Path) -> None:
    write(log, "in", [(b"%d" % i, BAD, i) for i in range(5)])
    run_until_dead(log, tmp_path / "state", 5)
    assert replay(log, "dead", limit=2) == {"in": 2}
    assert replay(log, "dead") == {"in": 3}


def test_what_is_no_dead_letter_is_not_sent_anywhere(log: Log) -> None:
    write(log, "in", [(b"a", GOOD, 5)])
    with pytest.raises(InvalidInput, match="offset 0 is no dead letter"):
        replay(log, "in")
    assert len(read(log, "in")) == 1


def test_the_command_puts_them_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "commanded"
    with embedded(where) as log:
        log.admin().ensure_topic("in", partitions=3)
        write(log, "in", [(b"%d" % i, BAD, i) for i in range(3)])
        run_until_dead(log, tmp_path / "state", 3)

    def said(*args: str, code: int = 0) -> str:
        assert main(["streams", "replay", *args, "--data", str(where)]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    assert json.loads(said("dead", "--limit", "2", "--json")) == {"topic": "in", "records": 2}
    assert [line.split() for line in said("dead").splitlines()][-1] == ["in", "1"]
    assert said("dead", "--json") == ""
    assert "did you mean 'dead'" in said("daed", code=1)
    assert "is no dead letter" in said("in", code=1)
    with embedded(where) as log:
        assert [record.value for record in read(log, "in")] == [BAD] * 6
