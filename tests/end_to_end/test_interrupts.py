"""Ctrl-C and SIGTERM while a history is computed: what was made is taken back, in words, and the exit code says which it was."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logflume.cli.on_spark import session_until_stopped
from logflume.cli.stopping import Interrupts
from logflume.log import connect
from logflume.streams import spark
from logflume.streams.spark import SparkSettings

from ._command import LOGFLUME, serving

IN_JAVA: dict[str, Any] = {"__name__": "py4j.clientserver", "threading": threading}
exec("def call(answered):\n    assert answered.wait(60)\n    raise ConnectionError('Job 0 cancelled')\n", IN_JAVA)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_is_an_exception(number: signal.Signals, kind: type[BaseException]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(kind), Interrupts("taking back"):
        send(number)
    assert signal.getsignal(number) is before


def interrupted_in_java(interrupts: Interrupts) -> None:
    answered = threading.Event()
    interrupts.install(answered.set)
    threading.Timer(0.05, send, (signal.SIGINT,)).start()
    IN_JAVA["call"](answered)


def test_a_call_to_java_is_cancelled_and_returns_first() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts("taking back") as interrupts:
        interrupted_in_java(interrupts)


def interrupted_in_another_call(interrupts: Interrupts) -> None:
    with contextlib.suppress(ConnectionError):
        interrupted_in_java(interrupts)
    assert threading.Event().wait(60), "the signal comes again where it does no harm"


def test_a_call_to_java_that_ends_well_is_followed_by_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts("taking back") as interrupts:
        interrupted_in_another_call(interrupts)


def interrupted_while_it_takes_back(done: list[str]) -> None:
    try:
        raise ConnectionError
    except ConnectionError:
        send(signal.SIGINT)
        done.append("taken back")
        raise


def test_what_handles_an_error_is_let_do_so() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), Interrupts("taking back"):
        interrupted_while_it_takes_back(done)
    assert done == ["taken back"]


def test_a_second_signal_kills() -> None:
    program = (
        "import os, signal\nfrom logflume.cli.stopping import Interrupts\n"
        "with Interrupts('taking back'):\n    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n        os.kill(os.getpid(), signal.SIGTERM)\n        print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "\ntaking back\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_who_stops_what_runs_on_spark_is_told_what_is_waited_for(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = SimpleNamespace(sparkContext=SimpleNamespace(uiWebUrl=None, master="local"), stop=lambda: None)
    monkeypatch.setattr(spark, "open_session", lambda *_: session)
    with signals_given_back(), session_until_stopped("a", SparkSettings(), as_json=as_json) as (_, stopping):
        capsys.readouterr()
        send(signal.SIGTERM)
        assert stopping.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        said = capsys.readouterr().err
    if as_json:
        said = json.loads(said)["message"]
    assert "the micro-batch under way ends first; once more does not wait for it, and loses nothing" in said


@contextlib.contextmanager
def signals_given_back() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


INTERRUPTED = """
import os
import signal

import logflume as lf
from logflume import col

BEFORE = signal.{name}


def interrupted(flight):
    os.kill(os.getpid(), BEFORE)
    return True


app = lf.App("interrupted")
app.stream("flights").filter(interrupted).group_by(col.carrier).aggregate(n=lf.count()).to("counted")

if __name__ == "__main__":
    app.run()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_backfill_leaves_nothing(name: str, code: int, tmp_path: Path) -> None:
    file, scratch = tmp_path / "interrupted.py", tmp_path / "scratch"
    file.write_text(INTERRUPTED.format(name=name))
    scratch.mkdir()
    with serving(tmp_path / "data", "--workers", "0") as (address, _), connect(address) as log:
        log.admin().create_topic("flights")
        with contextlib.closing(log.producer()) as producer:
            producer.send("flights", b'{"carrier": "UA"}')
            producer.flush()
        command = [*LOGFLUME, "backfill", str(file), "--engine", "local", "--bootstrap", address]
        environment = os.environ | {"TMPDIR": str(scratch)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert done.returncode == code, done.stderr
        assert "interrupted: taking back what was made; once more leaves that to --abort" in done.stderr
        assert "Traceback" not in done.stderr
        assert [topic for topic in log.admin().list_topics(include_internal=True) if not topic.startswith("__")] == ["flights"]
        assert not log.admin().group_offsets("interrupted")
        assert list(scratch.iterdir()) == []
