"""The command line as a user calls it: real processes against a real server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._command import LOGFLUME, free_port, read_until, run, serving, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("serve") / "data", "--workers", "0") as (address, _):
        yield address


def test_topics_are_created_listed_described_and_deleted(server: str) -> None:
    assert (
        "created topic flights with 3 partitions"
        in run(
            "topic", "create", "flights", "--partitions", "3", "--config", "cleanup.policy=compact", "--bootstrap", server
        ).stdout
    )
    listed = [json.loads(line) for line in run("topic", "list", "--json", "--bootstrap", server).stdout.splitlines()]
    assert {"topic": "flights", "partitions": 3, "offsets": 0} in listed
    described = json.loads(run("topic", "describe", "flights", "--json", "--bootstrap", server).stdout)
    assert described["configs"]["cleanup.policy"] == "compact"
    assert [part["end"] for part in described["offsets"]] == [0, 0, 0]
    run("topic", "delete", "flights", "--bootstrap", server)
    assert "flights" not in run("topic", "list", "--bootstrap", server).stdout


def test_a_topic_has_the_brokers_number_of_partitions_unless_told(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--config", "num.partitions=4", "--workers", "0") as (address, _):
        for name, options, told in (("four", (), "4 partitions"), ("one", ("--partitions", "1"), "1 partition")):
            made = run("topic", "create", name, *options, "--bootstrap", address).stdout
            assert made.strip() == f"created topic {name} with {told}"
        listed = run("topic", "list", "--json", "--bootstrap", address).stdout.splitlines()
        assert {row["topic"]: row["partitions"] for row in map(json.loads, listed)} == {"four": 4, "one": 1}


def test_lines_become_records_and_come_back(server: str) -> None:
    run("topic", "create", "lines", "--partitions", "2", "--bootstrap", server)
    wrote = run("produce", "lines", "-K", ":", "--bootstrap", server, stdin="a:1\nb:2\na:3\nc:ö\n")
    assert "wrote 4 records" in wrote.stderr
    read = run("consume", "lines", "--json", "--bootstrap", server)
    assert "from beginning" in read.stderr
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert sorted((r["key"], r["value"]) for r in records) == [("a", "1"), ("a", "3"), ("b", "2"), ("c", "ö")]
    assert [r["value"] for r in records if r["key"] == "a"] == ["1", "3"]
    assert len(run("consume", "lines", "--limit", "2", "--bootstrap", server).stdout.splitlines()) == 2


def test_a_group_commits_and_is_reset(server: str) -> None:
    run("topic", "create", "work", "--bootstrap", server)
    run("produce", "work", "--bootstrap", server, stdin="1\n2\n3\n")
    assert len(run("consume", "work", "--group", "crew", "--bootstrap", server).stdout.splitlines()) == 3
    described = json.loads(run("group", "describe", "crew", "--json", "--bootstrap", server).stdout)
    assert [(o["committed"], o["lag"]) for o in described["offsets"]] == [(3, 0)]
    dry = run("group", "reset", "crew", "--topic", "work", "--to", "1", "--dry-run", "--json", "--bootstrap", server)
    assert json.loads(dry.stdout) == {"partition": 0, "before": 3, "would be": 1}
    run("group", "reset", "crew", "--topic", "work", "--to", "1", "--bootstrap", server)
    assert run("consume", "work", "--group", "crew", "--bootstrap", server).stdout.split() == ["0:1", "2", "0:2", "3"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["topic", "describe", "flihgts"], ["flihgts"]),
        (["topic", "create", "bad name!"], ["bad name!"]),
        (["topic", "create", "x", "--config", "retention.sm=1"], ["retention.sm", "retention.ms"]),
        (["topic", "create", "x", "--config", "retention.ms"], ["NAME=VALUE"]),
        (["consume", "nowhere"], ["nowhere"]),
        (["group", "reset", "g", "--topic", "lines", "--to", "soon"], ["beginning (earliest), end (latest), an offset", "soon"]),
    ],
)
def test_mistakes_are_one_line_that_names_the_cause(server: str, args: list[str], words: list[str]) -> None:
    failed = run(*args, "--bootstrap", server, code=1)
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr
    for word in words:
        assert word in failed.stderr


def test_an_address_where_nothing_listens_is_explained() -> None:
    failed = run("topic", "list", "--bootstrap", f"127.0.0.1:{free_port()}", code=1)
    assert "Traceback" not in failed.stderr
    assert "127.0.0.1" in failed.stderr


def test_serve_refuses_an_address_in_use(server: str, tmp_path: Path) -> None:
    failed = run("serve", "--data", str(tmp_path / "d"), "--listen", server, "--registry", "off", code=1)
    assert "choose another --listen" in failed.stderr
    assert not (tmp_path / "d").exists()


def test_a_directory_is_opened_here_and_joined_by_a_second_process(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    run("topic", "create", "t", "--data", data)
    run("produce", "t", "--data", data, stdin="1\n")
    program = (
        "import sys, logflume.log as l\nwith l.connect(sys.argv[1]) as log:\n  print('open', flush=True)\n  sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    try:
        assert run("consume", "t", "--data", data).stdout == "0:0\t\t1\n"
    finally:
        holder.communicate()


def test_reading_never_begins_a_log_and_a_command_says_which_one_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOGFLUME_DATA", raising=False)
    monkeypatch.delenv("LOGFLUME_BOOTSTRAP", raising=False)
    for command in (["topic", "list"], ["sql", "-e", "SHOW TOPICS;"]):
        failed = run(*command, code=1)
        assert f"there is no log in {tmp_path / 'data'}" in failed.stderr, command
        assert "Traceback" not in failed.stderr
    assert f"there is no log in {tmp_path / 'other'}" in run("consume", "t", "--data", "other", code=1).stderr
    assert "name the directory to begin one there: --data data" in run("topic", "create", "t", code=1).stderr
    assert list(tmp_path.iterdir()) == []
    run("topic", "create", "t", "--data", "data")
    listed = run("topic", "list")
    assert f"log: {tmp_path / 'data'}" in listed.stderr
    assert listed.stdout.splitlines()[1:] == ["t\t1\t0"]


def test_a_group_commits_what_was_printed(server: str) -> None:
    run("topic", "create", "some", "--bootstrap", server)
    run("produce", "some", "--bootstrap", server, stdin="1\n2\n3\n4\n5\n")
    read = ("consume", "some", "--group", "few", "--bootstrap", server)
    assert run(*read, "-n", "2").stdout.splitlines() == ["0:0\t\t1", "0:1\t\t2"]
    described = json.loads(run("group", "describe", "few", "--json", "--bootstrap", server).stdout)
    assert [(o["committed"], o["lag"]) for o in described["offsets"]] == [(2, 3)]
    assert run(*read, "-n", "1").stdout.splitlines() == ["0:2\t\t3"]
    assert run(*read).stdout.splitlines() == ["0:3\t\t4", "0:4\t\t5"]


def test_serve_says_once_why_the_broker_did_not_start(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path / "d"), "--listen", f"127.0.0.1:{free_port()}", "--registry", "off", "--sql", "off")
    failed = run("serve", *options, "--config", "log.retention.hourz=3", code=1)
    assert failed.stderr.count("did you mean 'log.retention.hours'") == 1
    assert failed.stderr.splitlines()[-1] == "logflume serve: the broker did not start"


def test_serve_refuses_contradictory_settings(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ("--data", str(tmp_path / "d"), "--listen", address, "--config", f"listeners=SASL_SSL://{address}")
    failed = run("serve", *options, code=1)
    assert f"--listen {address} and listeners=SASL_SSL://{address} say different things" in failed.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("is_stuck", [False, True])
def test_ctrl_c_at_a_terminal_stops_in_order_and_a_second_one_at_once(tmp_path: Path, is_stuck: bool) -> None:
    argv = [
        *LOGFLUME,
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--listen",
        f"127.0.0.1:{free_port()}",
        "--registry",
        "off",
        "--sql",
        "off",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        read_until(process, "ready; Ctrl-C stops")
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        if is_stuck:
            os.kill(children[1], signal.SIGSTOP)
            # Only then: a signal that ends a process overtakes a stop that it has not taken notice of yet.
            wait_until(lambda: Path(f"/proc/{children[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to every process of the group
        if is_stuck:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            wait_until(lambda: press_ctrl_c(process))  # on a busy machine two in a row can be one
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "did not stop" not in said
        assert ("is killed at once" in said) == is_stuck
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    finally:
        process.kill()
        process.wait()


def press_ctrl_c(process: subprocess.Popen[str]) -> bool:
    """Return whether the process ended soon after."""
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return process.returncode is not None


def test_serve_restarts_a_broker_that_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--workers", "0") as (address, process):
        run("topic", "create", "t", "--bootstrap", address)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        assert "SIGKILL" in read_until(process, "starting it again")
        read_until(process, "broker ready")
        assert "t\t1" in run("topic", "list", "--bootstrap", address).stdout
