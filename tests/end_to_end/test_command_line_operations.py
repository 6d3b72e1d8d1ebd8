"""config, txn, log, topic and group commands of an operator, against a real server."""

import contextlib
import io
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import ShareConsumer

from logflume.cli import main
from logflume.log import TopicPartition, connect
from logflume.log.batch import encode_batch, stamp

from ._command import LOGFLUME, free_port, read_until, serving

COMMANDS = ("config", "txn", "log", "topic", "group")


class Done(NamedTuple):
    """What a command printed."""

    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    with serving(data, "--workers", "0", "--config", "num.partitions=3") as (address, _):
        yield address


def run(*args: str, stdin: str = "", code: int = 0) -> Done:
    """Run a command in this process; it must end with the exit code."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(args)
    finally:
        sys.stdin = before
    assert found == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def rows(*args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*args, "--json").stdout.splitlines()]


def test_settings_are_shown_with_their_source_set_and_unset(server: str) -> None:
    at = ("--bootstrap", server)
    shown = {row["name"]: (row["value"], row["source"]) for row in rows("config", "show", *at)}
    assert shown["num.partitions"] == ("3", "static broker")
    assert "log.segment.bytes" not in shown
    run("topic", "create", "tuned", *at)
    run("config", "set", "log.retention.ms=5000", "--broker", "cluster", *at)
    run("config", "set", "retention.ms=7000", "--topic", "tuned", "--dry-run", *at)
    assert rows("config", "show", "retention.ms", "--topic", "tuned", *at)[0]["source"] == "dynamic default"
    run("config", "set", "retention.ms=7000", "--topic", "tuned", *at)
    (row,) = rows("config", "show", "retention.ms", "--topic", "tuned", *at)
    assert (row["value"], row["source"]) == ("7000", "topic")
    described = json.loads(run("config", "describe", "retention.ms", "--topic", "tuned", "--json", *at).stdout)
    assert [each["source"] for each in described["synonyms"]] == ["topic", "dynamic default", "default"]
    assert "segments" in described["meaning"]
    run("config", "unset", "retention.ms", "--topic", "tuned", *at)
    run("config", "unset", "log.retention.ms", "--broker", "cluster", *at)
    assert rows("config", "show", "retention.ms", "--topic", "tuned", *at)[0]["source"] == "default"
    assert len(rows("config", "show", "--all", *at)) > 300


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("config", "set", "retention.mss=1", "--topic", "tuned"), "did you mean 'retention.ms'"),
        (("config", "set", "retention.ms=soon", "--topic", "tuned"), "expected a whole number"),
        (("config", "set", "retention.ms=1"), "say whose settings"),
        (("config", "set", "retention.ms", "--topic", "tuned"), "expected NAME=VALUE"),
        (("config", "set", "num.partitions=1", "--broker", "1"), "set it at the next start"),
        (("config", "show", "nothing.like.it"), "broker has no setting"),
        (("config", "show", "--topic", "a", "--group", "b"), "give one of"),
        (("txn", "describe", "nobody"), "nobody"),
        (("txn", "abort"), "give either"),
        (("topic", "alter", "tuned"), "nothing to change"),
        (("topic", "delete-records", "tuned", "--before", "x"), "expects PARTITION:OFFSET"),
        (("group", "delete-offsets", "nobody", "--topic", "tuned"), "no such offsets"),
    ],
)
def test_mistakes_are_one_line(server: str, args: tuple[str, ...], says: str) -> None:
    run("topic", "list", "--bootstrap", server)
    done = run(*args, "--bootstrap", server, code=1)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_transactions_are_listed_described_and_aborted(server: str) -> None:
    at = ("--bootstrap", server)
    with connect(server) as log:
        log.admin().ensure_topic("money")
        producer = log.producer(transactional_id="payments")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("money", b"1", partition=0).result(30)
        listed = {row["transactional_id"]: row["state"] for row in rows("txn", "list", "--state", "Ongoing", *at)}
        assert listed["payments"] == "Ongoing"
        described = json.loads(run("txn", "describe", "payments", "--json", *at).stdout)
        assert described["partitions"] == ["money-0"]
        assert described["open_for_s"] >= 0
        assert rows("txn", "hanging", "--topic", "money", *at) == []
        run("txn", "abort", "payments", *at)
        assert rows("txn", "list", "--state", "Ongoing", *at) == []


def test_an_open_transaction_is_aborted_by_its_place(server: str) -> None:
    at = ("--bootstrap", server)
    with connect(server) as log:
        admin = log.admin()
        admin.ensure_topic("stuck")
        producer = log.producer(transactional_id="slow")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("stuck", b"1", partition=0).result(30)
        place = ("--topic", "stuck", "--partition", "0", "--start-offset")
        assert "open ones begin at: 0" in run("txn", "abort", *place, "7", *at, code=1).stderr
        run("txn", "abort", *place, "0", *at)
        stuck = TopicPartition("stuck", 0)
        assert admin.end_offsets([stuck], read_committed=True)[stuck] == 2


def test_a_hanging_transaction_is_found_and_aborted(tmp_path: Path) -> None:
    """Records of a transaction that no coordinator knows are behind the end of a log, as older brokers could leave them."""
    at = ("--data", str(tmp_path / "data"))
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("stuck")
        log.producer().send("stuck", b"before", partition=0).result(30)
    batch = encode_batch([None], [b"hangs"], [1], producer_id=777, producer_epoch=3, base_sequence=0, is_transactional=True)
    stamp(batch, 1, 0)
    with (tmp_path / "data" / "stuck-0" / f"{'0' * 20}.log").open("ab") as file:
        file.write(batch)
    (found,) = rows("txn", "hanging", *at)
    assert (found["topic"], found["start_offset"], found["producer_id"]) == ("stuck", 1, 777)
    assert [row["value"] for row in rows("consume", "stuck", *at)] == ["before"]
    run("txn", "abort", "--topic", "stuck", "--partition", "0", "--start-offset", "1", *at)
    assert rows("txn", "hanging", *at) == []
    run("produce", "stuck", *at, stdin="after\n")
    assert [row["value"] for row in rows("consume", "stuck", *at)] == ["before", "after"]


def test_topics_grow_change_and_shrink(server: str) -> None:
    at = ("--bootstrap", server)
    run("topic", "create", "growing", "--partitions", "1", *at)
    run("topic", "add-partitions", "growing", "--total", "4", *at)
    run("topic", "alter", "growing", "--config", "retention.ms=1000", "--config", "cleanup.policy=compact", *at)
    run("topic", "alter", "growing", "--unset", "cleanup.policy", *at)
    described = json.loads(run("topic", "describe", "growing", "--json", *at).stdout)
    assert (described["partitions"], described["configs"]) == (4, {"retention.ms": "1000"})
    run("topic", "create", "shrinking", "--partitions", "1", *at)
    run("produce", "shrinking", *at, stdin="1\n2\n3\n")
    run("topic", "delete-records", "shrinking", "--before", "0:2", *at)
    assert [row["value"] for row in rows("consume", "shrinking", *at)] == ["3"]


def test_a_groups_offsets_are_forgotten(server: str) -> None:
    at = ("--bootstrap", server)
    run("topic", "create", "read", "--partitions", "2", *at)
    run("produce", "read", *at, stdin="1\n2\n3\n")
    run("consume", "read", "--group", "readers", *at)
    run("group", "delete-offsets", "readers", "--topic", "read", "--partition", "1", *at)
    offsets = json.loads(run("group", "describe", "readers", "--json", *at).stdout)["offsets"]
    assert [each["partition"] for each in offsets] == [0]
    run("group", "delete", "readers", *at)
    assert "readers" not in run("group", "list", *at).stdout


def test_a_share_group_is_shown_and_reset(server: str) -> None:
    run("topic", "create", "queue", "--partitions", "1", "--bootstrap", server)
    run("produce", "queue", "--bootstrap", server, stdin="1\n2\n3\n")
    run("config", "set", "share.auto.offset.reset=earliest", "--group", "pickers", "--bootstrap", server)
    consumer = ShareConsumer({"bootstrap.servers": server, "group.id": "pickers", "log_level": 0})
    consumer.subscribe(["queue"])
    taken = 0
    while taken < 3:
        taken += len(consumer.poll(timeout=30))
    shown = json.loads(run("group", "describe", "pickers", "--json", "--bootstrap", server).stdout)
    assert (shown["state"], len(shown["members"]), [o["lag"] for o in shown["offsets"]]) == ("Stable", 1, [3])
    consumer.commit_sync(timeout=30)
    assert [o["committed"] for o in rows_of("pickers", server)] == [3]
    assert (
        "pickers has 1 member; stop all first"
        in run("group", "reset", "pickers", "--topic", "queue", "--to", "beginning", "--bootstrap", server, code=1).stderr
    )
    consumer.close()
    run("group", "reset", "pickers", "--topic", "queue", "--to", "1", "--bootstrap", server)
    assert [(o["committed"], o["lag"]) for o in rows_of("pickers", server)] == [(1, 2)]
    run("group", "delete", "pickers", "--bootstrap", server)
    assert rows_of("pickers", server) == []


def rows_of(group: str, server: str) -> list[dict[str, Any]]:
    """Return the offsets that `group describe` shows."""
    found: list[dict[str, Any]] = json.loads(run("group", "describe", group, "--json", "--bootstrap", server).stdout)["offsets"]
    return found


def test_files_of_a_running_log_are_dumped_and_verified(server: str, data: Path) -> None:
    at = ("--bootstrap", server)
    run("topic", "create", "dumped", "--partitions", "1", *at)
    run("produce", "dumped", *at, stdin="hello\n")
    path = str(data / "dumped-0" / f"{'0' * 20}.log")
    text = run("log", "dump", path, "--records").stdout
    assert "value=hello" in text
    assert [row["kind"] for row in rows("log", "dump", path, "--records")] == ["batch", "record"]
    assert len(run("log", "dump", path, "--records", "--limit", "1").stdout.splitlines()) == 1
    assert "none damaged" in run("log", "verify", str(data)).stdout
    assert any(row["check"] == "files" and row["state"] == "ok" for row in rows("doctor", "--data", str(data)))


def test_damage_is_found_with_its_place(tmp_path: Path) -> None:
    with connect(tmp_path / "data") as log:
        log.admin().create_topic("t")
        log.producer().send("t", b"value" * 100, partition=0).result(30)
    path = tmp_path / "data" / "t-0" / f"{'0' * 20}.log"
    good = bytearray(path.read_bytes())
    bad = bytearray(good)
    bad[200] ^= 1
    stamp(good, 1, 0)
    path.write_bytes(bad + good)
    done = run("log", "verify", str(tmp_path / "data"), code=1)
    assert str(path) in done.stdout
    assert "1 damaged" in done.stdout
    assert "problem" in run("log", "dump", str(path), code=1).stdout
    assert "restore this file" in run("doctor", "--data", str(tmp_path / "data"), code=1).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    overview = run(command, "--help").stdout
    assert "Example: logflume" in overview
    listed = overview.partition("Commands:")[2].splitlines()
    names = [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]
    assert len(names) >= 2
    for name in names:
        assert "--help" in run(command, name, "--help").stdout


def test_serve_takes_kafkas_file_and_tells_metrics_and_json_lines(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    path = tmp_path / "server.properties"
    path.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path / 'logs'}\nnum.partitions=5\nlogflume.flush=os\n"
        f"logflume.http.listener=127.0.0.1:{http}\n"
    )
    argv = [*LOGFLUME, "serve", "--workers", "0", "--registry", "off", "--config-file", str(path), "--log-format", "json"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        read_until(process, f"http://127.0.0.1:{http}/metrics")
        read_until(process, "ready; Ctrl-C stops")
        (row,) = rows("config", "show", "num.partitions", "--bootstrap", f"127.0.0.1:{port}")
        assert (row["value"], row["source"]) == ("5", "static broker")
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=30) as answer:
            assert answer.read() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=60)
        assert process.returncode == 0
        lines = [json.loads(line) for line in logged.splitlines()]
        assert any("power cut" in line["message"] for line in lines)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "logs" / "meta.properties").exists()
