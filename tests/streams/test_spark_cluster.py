"""Backfills on a standalone Spark cluster whose workers have neither the package nor the application."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logflume.log import InvalidInput, LogflumeError, TopicPartition, TransportError, connect
from logflume.streams.runtime import StreamsError
from logflume.streams.spark import SparkSettings, SparkUnavailable, parse_conf
from logflume.streams.spark.continuous import _follow, unless_stopped
from logflume.streams.spark.executors import files_of, pack, warned_of_no_executors, zipped
from logflume.streams.spark.failures import failures_of
from logflume.streams.spark.probe import Probe
from logflume.streams.spark.runner import SparkResult
from logflume.streams.spark.session import check_master, close_session, refuse_speculation, silence_py4j, starting

from .._java import quick_spark
from ..end_to_end._command import LOGFLUME, free_port, run
from ..end_to_end._delays import DELAYS, flight, load, send, wait_for
from ..log._client_tools import wait_until
from ..log._server_process import ServerProcess
from ._replace_apps import table
from ._spark_cluster import WAIT_S, Cluster, python_without_the_package
from ._spark_session import NEEDS_JAVA


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(str(tmp_path / "log"))
    yield process
    process.stop()


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """`examples/delays.py` in a folder of its own, with a module beside it that it imports."""
    folder = tmp_path / "application"
    folder.mkdir()
    (folder / "limits_of_delay.py").write_text("import math\nNONE = math.nan\n")
    file = folder / "delays.py"
    file.write_text("import limits_of_delay\n" + DELAYS.read_text())
    return file


KILLED_APPLICATION = """
import logflume as lf
import msgspec
from logflume import col

import kills


class Flight(msgspec.Struct):
    carrier: str
    dep_delay: float


class Airline(msgspec.Struct):
    name: str


app = lf.App("killed")
airlines = app.global_table("airlines", Airline)
flights = app.stream("flights", Flight).filter(kills.while_reading).join(airlines, on=col.carrier)
counted = flights.select_key(col.name).repartition("by-name").filter(kills.while_counting).group_by_key()
counted.aggregate(flights=lf.count(), delay=lf.sum(col.dep_delay)).to("counted")

if __name__ == "__main__":
    app.run()
"""
KILLS = """
import os
import signal
import time

FOLDER = {folder!r}
IS_EXECUTOR = "SPARK_LOCAL_DIRS" in os.environ

if not IS_EXECUTOR:
    with open(FOLDER + "/pid-of-driver", "w") as file:
        file.write(str(os.getpid()))

def parent(pid):
    with open("/proc/" + str(pid) + "/stat") as about:
        return int(about.read().rpartition(")")[2].split()[1])

def pid_of(which):
    if which.startswith("executor"):
        return parent(os.getppid())  # a worker's parent is a daemon of the executor
    with open(FOLDER + "/pid-of-" + which) as file:
        return int(file.read())

def is_executor(pid):
    try:
        with open("/proc/" + str(pid) + "/cmdline", "rb") as about:
            return b"CoarseGrainedExecutorBackend" in about.read()
    except OSError:
        return False

def kill_once(*each):
    for which in each:
        pid = pid_of(which)
        if which.startswith("executor") and not is_executor(pid):
            os._exit(1)  # this worker has outlived its executor
        try:
            note = os.open(FOLDER + "/killed-" + which, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            continue
        os.write(note, str(pid).encode())
        os.close(note)
        os.kill(pid, signal.SIGKILL)
        if which.startswith("executor"):
            os._exit(1)  # else it would go on without its executor, and kill what comes next
        if which == "driver":
            time.sleep(8)  # its JVM lives on for a moment, and would end the stage

def while_reading(flight):
    if IS_EXECUTOR:
        kill_once("executor-1", "executor-2", "broker")
    return True

def while_counting(flight):
    if IS_EXECUTOR:
        kill_once("driver")
    return True
"""
"""A module of the application that kills from inside of an executor's task, each once."""


def command_of(cluster: Cluster, application: Path, address: str, python: str) -> list[str]:
    """Return the arguments of a backfill on the cluster."""
    return ["backfill", str(application), *options_of(cluster, application, python), "--json", "--bootstrap", address]


def options_of(cluster: Cluster, application: Path, python: str) -> list[str]:
    """Return the options that name the cluster."""
    settings = application.with_name("spark.properties")
    lines = [f"spark.pyspark.python {python}", "spark.driver.host 127.0.0.1", "spark.executor.memory 512m"]
    lines += [f"spark.executor.extraJavaOptions {quick_spark()}"]
    settings.write_text("\n".join(lines))
    return ["--master", cluster.url, "--properties-file", str(settings), "--conf", "spark.cores.max=2"]


def backfilled(cluster: Cluster, application: Path, address: str, *more: str, python: str, code: int = 0) -> tuple[str, str]:
    done = run(*command_of(cluster, application, address, python), *more, code=code, timeout_s=WAIT_S)
    return done.stdout, done.stderr


def done_beside(server: ServerProcess, command: list[str], said: Path) -> tuple[int, str]:
    """Run a command, and the broker again whenever it was killed; return the exit code, and what was said (kept in a file)."""
    with said.open("w") as file:
        process = subprocess.Popen([*LOGFLUME, *command], stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + WAIT_S
        while process.poll() is None:
            assert time.monotonic() < deadline
            assert server.process is not None
            if server.process.poll() is not None:
                server.kill()
                server.start()
            time.sleep(0.05)
        return process.returncode, said.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_package_and_application_travel_to_a_cluster_that_reads_an_archive(
    cluster: Cluster, server: ServerProcess, application: Path, tmp_path: Path
) -> None:
    load(server.address)
    archive = str(tmp_path / "archive")
    lines = run("archive", "flights", "--to", archive, "--json", "--bootstrap", server.address).stdout.splitlines()
    with connect(server.address) as log:
        files = [json.loads(line) for line in lines]
        log.admin().delete_records({TopicPartition("flights", file["partition"]): file["end"] // 2 for file in files})
    out, _ = backfilled(cluster, application, server.address, "--history", archive, python=cluster.python)
    report = json.loads(out.splitlines()[-1])
    assert report["message"].endswith("goes on at the cut")
    wait_for(server.address, {"United": 15, "Delta": 15})
    assert list(cluster.folder.glob("work-*/app-*/*/logflume-package/logflume/__init__.py"))
    assert not list(cluster.folder.glob("worker-*/**/logflume-*"))  # scratch directories are gone


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_executors_the_broker_and_the_driver_are_killed_and_nothing_is_lost_or_doubled(
    cluster: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    load(server.address)
    application = killed_application(server, tmp_path)
    command = command_of(cluster, application, server.address, cluster.python)
    command += ["--checkpoint", str(tmp_path / "kept")]
    killed_with_all(server, command, tmp_path)
    send(server.address, "flights", [flight(n) for n in range(60, 64)])  # after the cut
    code, said = done_beside(server, command, tmp_path / "said")
    assert code == 0, said
    report = json.loads(said.splitlines()[-1])
    assert [stage["way"].endswith(", kept") for stage in report["stages"]] == [True, False]
    assert counted(server) == counts_of(60)


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_a_continuous_run_loses_and_doubles_nothing_when_executors_the_broker_and_the_driver_are_killed(
    cluster: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    load(server.address)
    application = killed_application(server, tmp_path)
    command = ["run", str(application), "--engine", "spark", *options_of(cluster, application, cluster.python)]
    command += ["--until-end", "--json", "--state-dir", str(tmp_path / "state"), "--bootstrap", server.address]
    killed_with_all(server, command, tmp_path)
    send(server.address, "flights", [flight(n) for n in range(60, 64)])
    code, said = done_beside(server, command, tmp_path / "said")
    assert code == 0, said
    assert json.loads(said.splitlines()[-1])["behind"] == 0
    assert counted(server) == counts_of(64)


def killed_application(server: ServerProcess, folder: Path) -> Path:
    """Write an application that kills what it runs on."""
    assert server.process is not None
    (folder / "pid-of-broker").write_text(str(server.process.pid))
    (folder / "kills.py").write_text(KILLS.format(folder=str(folder)))
    (folder / "killed.py").write_text(KILLED_APPLICATION)
    return folder / "killed.py"


def killed_with_all(server: ServerProcess, command: list[str], folder: Path) -> None:
    """Run it until its driver is killed, the last one of all; no result is visible then."""
    code, said = done_beside(server, command, folder / "said")
    assert code == -signal.SIGKILL, said
    killed = sorted(path.name.removeprefix("killed-") for path in folder.glob("killed-*"))
    assert killed == ["broker", "driver", "executor-1", "executor-2"]
    assert len({(folder / f"killed-{which}").read_text() for which in killed}) == len(killed)
    assert counted(server) == {}


def counted(server: ServerProcess) -> object:
    with connect(server.address) as log:
        return table(log, topic="counted")


def counts_of(flights: int) -> object:
    """Return what there is to be counted."""
    expected: dict[str, list[float]] = {}
    for carrier, value in map(flight, range(flights)):
        expected.setdefault(carrier, []).append(float(str(value["dep_delay"])))
    names = {"UA": b"United", "DL": b"Delta"}
    return {names[key]: {"flights": len(delays), "delay": sum(delays)} for key, delays in expected.items()}


@pytest.mark.spark
@pytest.mark.slow
@NEEDS_JAVA
def test_what_executors_lack_is_said_before_the_job(cluster: Cluster, server: ServerProcess, application: Path) -> None:
    load(server.address)
    topics = run("topic", "list", "--bootstrap", server.address).stdout
    only_there = "import os\nif 'SPARK_LOCAL_DIRS' in os.environ:\n    import not_there\n"
    application.with_name("limits_of_delay.py").write_text(only_there)
    _, err = backfilled(cluster, application, server.address, python=cluster.python, code=1)
    assert "has no module not_there" in err
    assert "Traceback" not in err
    assert run("topic", "list", "--bootstrap", server.address).stdout == topics


@pytest.mark.parametrize("said", ["true", "True"])
def test_speculation_is_refused_for_an_application_that_keeps_its_stores(said: str) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.speculation": said}))
    with pytest.raises(InvalidInput, match=r"--conf spark\.speculation=false"):
        refuse_speculation(spark)


def test_a_master_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(SparkUnavailable, match=r"no Spark master answers at spark://127.0.0.1:\d+ \(.*refused"):
        check_master(f"spark://127.0.0.1:{free_port()}")
    with pytest.raises(InvalidInput, match="a master is spark://HOST:PORT"):
        check_master("spark://nowhere")


@pytest.mark.parametrize("master", ["foo", "local[x]", "local[0]", "spark:/host:7077", "host:7077", "", "Yarn"])
def test_what_is_no_master_is_refused_before_spark_starts(master: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"no master {re.escape(repr(master))}; expected spark://HOST:PORT, yarn, .*local\[CORES\]"
    ):
        check_master(master)


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[3]", "local[2, 4]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h:1"]
)
def test_masters_that_spark_knows_are_left_to_it(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited.", "its process has ended at once; what it said .* printed above"),
        ('An error\n: a.NumberFormatException: For "abc"\n\tat a', '.*NumberFormatException: For "abc"'),
        (
            "An error\n: k.ClientException: An error\n\tat a\nCaused by: java.net.UnknownHostException: x\n\tat b",
            ".*UnknownHost.*x",
        ),
    ],
)
def test_a_spark_that_does_not_start_says_why(said: str, why: str) -> None:
    with pytest.raises(SparkUnavailable, match=f"Spark has not started: {why}.*settings"), starting():
        raise RuntimeError(said)


def test_an_executor_without_the_archive_says_so(tmp_path: Path) -> None:
    said = list(Probe(b"", "", None, str(tmp_path / "orders-0.parquet"))(0))
    assert f"does not see {tmp_path}/orders-0.parquet: an archive has to be in a directory that all executors share" in said[0]


def test_nothing_is_on_its_way_to_executors_once_a_result_is_released() -> None:
    waited: list[bool] = []
    frames: list[Any] = [SimpleNamespace(unpersist=lambda blocking=False: waited.append(blocking)) for _ in range(2)]
    SparkResult("", frames[:1], [], [], [], looks_at_places=False, read_once=frames[1:]).release()
    assert waited == [True, True]


@pytest.mark.parametrize(
    ("said", "is_stopped", "kind"),
    [
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", False, TransportError),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", True, StreamsError),
        ("Traceback (most recent call last):\n  File x\nlogflume.streams.spark.ranges.RangeLost: gone\n", False, StreamsError),
    ],
)
def test_what_spark_has_not_done_is_an_error_of_ours(said: str, is_stopped: bool, kind: type[LogflumeError]) -> None:
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: is_stopped)))
    spark: Any = SimpleNamespace(sparkContext=context)
    with pytest.raises(kind, match=r"Spark has not computed 'a': .*(ExecutorLost|RangeLost)"), failures_of(spark, "computed 'a'"):
        raise RuntimeError(said)


def test_a_spark_whose_process_has_ended_is_told_of_once() -> None:
    """Neither by what asks it in passing, nor when it is stopped."""
    from py4j.protocol import Py4JNetworkError

    def gone(*_: object, **__: object) -> Any:
        raise Py4JNetworkError("Answer from Java side is empty")

    context = SimpleNamespace(_jsc=SimpleNamespace(sc=gone), master="spark://m:7077", statusTracker=gone)
    spark: Any = SimpleNamespace(sparkContext=context, stop=gone)
    told = pytest.raises(StreamsError, match="Spark has not computed 'a': Answer from Java side is empty")
    with told, failures_of(spark, "computed 'a'"), warned_of_no_executors(spark, after_s=0.0):
        gone()
    frames: list[Any] = [SimpleNamespace(unpersist=gone)]
    SparkResult("", frames, [], [], [], looks_at_places=False).release()
    close_session(spark)


class Chain:
    """Stands for Spark's readers and writers, each of whose methods gives the next; `start` gives the query."""

    def __init__(self, query: object) -> None:
        self.start = lambda: query
        self.sparkContext = SimpleNamespace(_jsc=None)

    def __getattr__(self, _: str) -> Chain:
        return self

    def __call__(self, *_: object, **__: object) -> Chain:
        return self


class GoneQuery:
    """A query of Structured Streaming whose Java has ended."""

    def _gone(self) -> Any:
        from py4j.protocol import Py4JNetworkError

        raise Py4JNetworkError("Answer from Java side is empty")

    isActive = property(_gone)
    stop = exception = _gone


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_spark_that_ends_under_an_application_is_no_error_for_who_stops_both(is_stopping: bool) -> None:
    """SIGTERM is for the JVM too where a service manager, or `timeout`, sends it to all processes of a command."""
    stopping = threading.Event()
    nothing = SimpleNamespace(check=lambda: None)
    batches: Any = SimpleNamespace(sources=["a"], plan=SimpleNamespace(application="a"), finish=lambda: None, member=nothing)
    spark: Any = Chain(GoneQuery())
    if is_stopping:
        stopping.set()
    told = nullcontext() if is_stopping else pytest.raises(StreamsError, match="Spark has not followed 'a': Answer from Java")
    with told:
        _follow(spark, batches, "", 1.0, stopping, lambda _: None)
    told = nullcontext() if is_stopping else pytest.raises(StreamsError, match="shut down")
    with told, unless_stopped(spark, stopping):
        raise StreamsError("Job 0 cancelled because SparkContext was shut down")


def test_libraries_say_nothing_of_a_spark_that_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """What py4j logs is a page of tracebacks, under the name of the root logger."""

    def stop() -> None:
        warnings.warn("Unable to cleanly shutdown Spark JVM process.", RuntimeWarning, stacklevel=1)

    spark: Any = SimpleNamespace(stop=stop)
    close_session(spark)
    root = logging.getLogger()
    with logger_as_it_was(root):
        silence_py4j()
        for path in ("/lib/py4j/java_gateway.py", "/lib/mine.py"):
            root.handle(logging.LogRecord("root", logging.ERROR, path, 1, path, (), None))
    assert caplog.messages == ["/lib/mine.py"]


@contextmanager
def logger_as_it_was(logger: logging.Logger) -> Iterator[None]:
    before = list(logger.filters)
    try:
        yield
    finally:
        logger.filters[:] = before


def test_a_cluster_that_gives_no_executor_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Java's side of Spark is played: a driver alone, as where workers have less memory than an executor asks for."""
    asked = {"spark.executor.memory": "8g"}
    conf = SimpleNamespace(get=asked.get, contains=asked.__contains__)
    java = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://m:7077", _jsc=java, getConf=lambda: conf))
    with warned_of_no_executors(spark, after_s=0.0):
        wait_until(lambda: bool(caplog.messages))
    (said,) = caplog.messages
    assert "no executor for" in said
    assert "all cores of spark://m:7077 are taken, or no worker has the memory" in said
    assert "(spark.executor.memory=8g)" in said


def test_settings_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--conf expects spark\.NAME=VALUE.*found 'password'"):
        parse_conf(["password=secret"])
    with pytest.raises(InvalidInput, match="Spark's properties"):
        SparkSettings(properties_file=tmp_path / "none")


def test_the_archive_of_the_package_unpacks_itself(tmp_path: Path) -> None:
    archive = pack(tmp_path / "logflume-package.zip")
    python = python_without_the_package(tmp_path / "python")
    script = "from logflume.log.broker.settings.table import *; import logflume, logflume.sql; print(logflume.__file__)"
    path = {"PYTHONPATH": str(archive)}
    workers = [
        subprocess.Popen([python, "-c", script], cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    found = {worker.communicate(timeout=60)[0].strip() for worker in workers}
    assert found == {str(tmp_path / "logflume-package" / "logflume" / "__init__.py")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logflume-package", "logflume-package.zip", "python"]


def test_only_what_an_application_imports_from_beside_it_is_sent(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    (folder / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "limits.csv", "__pycache__/x.pyc"):
        (folder / name).write_text("")
    assert [str(name) for name, _ in files_of([folder])] == ["rules/__init__.py", "rules/limits.csv"]
    assert zipped(tmp_path / "a.zip", files_of([folder])).is_file()
