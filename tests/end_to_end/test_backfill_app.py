"""`logflume backfill app.py`, as README shows it: the history of a Python application, then the application itself."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from logflume.log import TopicPartition, connect
from logflume.sql import SqlEngine

from ..streams.running import read
from ._command import LOGFLUME, LOOK_EVERY_S, run, serving
from ._delays import DELAYS, flight, load, send, wait_for


def test_an_application_goes_on_where_its_backfill_ended(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        load(address)
        planned = json.loads(run("backfill", str(DELAYS), "--dry-run", "--json", "--bootstrap", address).stdout)
        assert planned["application"] == "delays"
        assert planned["results"] == ["delays"]
        assert sum(each["cut"] for each in planned["cut"] if each["topic"] == "flights") == 60
        assert "delays" not in run("topic", "list", "--bootstrap", address).stdout, "a dry run changes nothing"
        done = run("backfill", str(DELAYS), "--engine", "local", "--bootstrap", address)
        assert f"logflume run {DELAYS} goes on at the cut" in done.stdout
        # the topology reads them in two steps, through a repartition topic: each record counts once all the same
        computed = [line for line in done.stdout.splitlines() if line.startswith("computed")]
        assert computed == ["computed     62 records; left out: none"], "60 flights and 2 airlines"
        table = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
        stages = table[table.index(["stage", "computed", "tasks", "rows out", "MB out", "CPU s", "seconds"]) + 1 :]
        assert {how for _, how, *_ in stages[:-2]} == {"record by record"}
        assert [what for what, *_ in stages[-2:]] == ["hand-over", "claim, executors that start, waiting"]
        wait_for(address, {"United": 15, "Delta": 15})
        again = run("backfill", str(DELAYS), "--engine", "local", "--bootstrap", address, code=1)
        assert "has begun already" in again.stderr
        send(address, "flights", [flight(61), flight(63)])
        command = [*LOGFLUME, "run", str(DELAYS), "--bootstrap", address, "--state-dir", str(tmp_path / "state")]
        live = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(address, {"United": 16, "Delta": 16})
            live.send_signal(signal.SIGINT)
            assert live.wait(60) == 0
        finally:
            live.kill()
            live.wait()


def test_another_application_takes_the_place_of_one(tmp_path: Path) -> None:
    new = tmp_path / "new.py"
    new.write_text(DELAYS.read_text().replace('lf.App("delays")', 'lf.App("late")'))
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        load(address)
        run("backfill", str(DELAYS), "--engine", "local", "--bootstrap", address)
        none = run("backfill", str(new), "--abort", "--bootstrap", address, code=1)
        assert "there is no unfinished backfill of application 'late'" in none.stderr
        done = run("backfill", str(new), "--engine", "local", "--replace", "delays", "--bootstrap", address)
        assert f"logflume run {new} goes on at the cut" in done.stdout
        wait_for(address, {"United": 15, "Delta": 15})
        refused = run("run", str(DELAYS), "--bootstrap", address, "--state-dir", str(tmp_path / "state"), code=1)
        assert "application 'delays' is replaced by 'late'" in refused.stderr


def test_a_file_that_runs_no_application_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import logflume\n")
    run("topic", "create", "t", "--data", str(tmp_path / "data"))
    done = run("backfill", str(tmp_path / "empty.py"), "--data", str(tmp_path / "data"), code=1)
    assert "runs 0 applications; expected one app.run()" in done.stderr


def test_a_history_that_the_log_has_lost_is_computed_from_its_archive(tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        load(address)
        lines = run("archive", "flights", "--to", archive, "--json", "--bootstrap", address).stdout.splitlines()
        files = [json.loads(line) for line in lines]
        assert sum(file["records"] for file in files) == 60
        assert run("archive", "flights", "--to", archive, "--bootstrap", address).stdout == "", "all of it is there"
        with connect(address) as log:
            log.admin().delete_records({TopicPartition("flights", file["partition"]): file["end"] // 2 for file in files})
        dry = run("backfill", str(DELAYS), "--history", archive, "--dry-run", "--json", "--bootstrap", address)
        cut = [each for each in json.loads(dry.stdout)["cut"] if each["topic"] == "flights"]
        assert [(each["start"], each["archived"]) for each in cut] == [(0, file["end"]) for file in files]
        run("backfill", str(DELAYS), "--history", archive, "--engine", "local", "--bootstrap", address)
        wait_for(address, {"United": 15, "Delta": 15})


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300"])
def test_an_archive_is_not_followed_every_so_many_seconds(seconds: str, tmp_path: Path) -> None:
    refused = run("archive", "t", "--to", str(tmp_path), "--follow", "--every", seconds, "--data", str(tmp_path / "d"), code=1)
    assert "--every expects a number of seconds above 0" in refused.stderr


def test_several_queries_over_one_topic_are_computed_in_one_pass(tmp_path: Path) -> None:
    queries = [
        "CREATE TABLE sums AS SELECT k, SUM(n) AS total FROM old GROUP BY k;",
        "CREATE STREAM odd AS SELECT k, n FROM old WHERE n % 2 = 1;",
    ]
    given = [word for query in queries for word in ("-e", query)]
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        where = ("--bootstrap", address)
        made = "CREATE STREAM old (k STRING KEY, n INT) WITH (kafka_topic='old', value_format='JSON', partitions=2);"
        values = " ".join(f"INSERT INTO old VALUES ('{'ab'[n % 2]}', {n});" for n in range(20))
        run("sql", "-e", made + values, *where)
        shown = run("backfill", *given, "--engine", "local", "--dry-run", "--json", *where).stdout
        *planned, once = [json.loads(line) for line in shown.splitlines()]
        assert once == {"read_once": ["old"], "applications": [each["application"] for each in planned]}
        assert len(planned) == 2
        none = run("backfill", *given, "--abort", *where, code=1)
        assert "there is no unfinished backfill of applications 'logflume-sql-CSAS_ODD_" in none.stderr
        refused = run("backfill", *given, "--engine", "local", "--replace", "other", *where, code=1)
        assert "is given alone: one takes the place of one" in refused.stderr
        done = [json.loads(line) for line in run("backfill", *given, "--engine", "local", "--json", *where).stdout.splitlines()]
        reports = [each for each in done if "results" in each and "records" in each]
        assert [each["records"] for each in reports] == [20, 20]
        assert all("read once with others" in each["stages"][0]["way"] for each in reports)
        run("sql", "-e", "INSERT INTO old VALUES ('b', 101);", *where)
        wait_until_pulled(address, "SELECT total FROM sums WHERE k = 'b';", 100 + 101)
        wait_until_pulled(address, "SELECT n FROM odd;", 101)
        odd = run("sql", "-e", "SELECT n FROM odd;", "--json", *where).stdout
        assert sorted(json.loads(line)["N"] for line in odd.splitlines()) == [*range(1, 20, 2), 101]


def test_several_inserts_into_one_stream_are_computed_in_one_pass(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--workers", "0") as (address, _):
        where = ("--bootstrap", address)
        columns = "(k STRING KEY, n INT) WITH (kafka_topic='{0}', value_format='JSON', partitions=2);"
        made = " ".join(f"CREATE STREAM {name} {columns.format(name)}" for name in ("old", "new"))
        run("sql", "-e", made + "INSERT INTO old VALUES ('a', 1), ('b', 2), ('a', 3);", *where)
        given = [
            "-e",
            "INSERT INTO new SELECT k, n FROM old WHERE n < 3;",
            "-e",
            "INSERT INTO new SELECT k, n + 10 AS n FROM old;",
        ]
        refused = run("backfill", *given, "--engine", "local", *where, code=1)
        assert "INSERT INTO stream WITH (QUERY_ID = 'name') SELECT" in refused.stderr
        named = [text.replace("new SELECT", f"new WITH (QUERY_ID = 'q{at}') SELECT") for at, text in enumerate(given)]
        run("backfill", *named, "--engine", "local", *where)
        run("sql", "-e", "INSERT INTO old VALUES ('b', 100);", *where)
        wait_until_pulled(address, "SELECT n FROM new;", 110)
        found = run("sql", "-e", "SELECT n FROM new;", "--json", *where).stdout
        assert sorted(json.loads(line)["N"] for line in found.splitlines()) == [1, 2, 11, 12, 13, 110]


def wait_until_pulled(address: str, query: str, expected: int) -> None:
    deadline = time.monotonic() + 60
    while str(expected) not in (found := run("sql", "-e", query, "--json", "--bootstrap", address).stdout):
        assert time.monotonic() < deadline, found
        time.sleep(LOOK_EVERY_S)


def test_what_the_history_of_a_query_leaves_out_is_kept_where_set_says(tmp_path: Path) -> None:
    query = "SET 'errors.dead.letter.queue.topic.name' = 'dead'; CREATE STREAM kept AS SELECT k, n FROM old WHERE n > 0;"
    made = "CREATE STREAM old (k STRING KEY, n INT) WITH (kafka_topic='old', value_format='JSON', partitions=2);"
    with connect(str(tmp_path / "data")) as log:
        with SqlEngine(log, tmp_path / "scratch") as engine:
            list(engine.execute(made + "INSERT INTO old VALUES ('a', 1);"))
            with log.producer() as producer:
                producer.send("old", b"{broken", key=b"b", timestamp_ms=5)
        where = ("--engine", "local", "--data", log.where)
        assert json.loads(run("backfill", "-e", query, "--dry-run", "--json", *where).stdout)["dead_letters"] == "dead"
        assert "1 decode" in run("backfill", "-e", query, *where).stdout
        assert [(letter.key, letter.value) for letter in read(log, "dead")] == [(b"b", b"{broken")]
        with SqlEngine(log, tmp_path / "scratch") as engine:
            assert [each.dead_letter_topic for each in engine.catalog.queries.values()] == ["dead"]
