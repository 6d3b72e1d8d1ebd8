"""Apache Kafka's own programs, run on Java from jars that are on this machine already. Nothing is downloaded.

The jars are those of LOGFLUME_KAFKA_JARS (a folder), else of the local Maven repository (M2_REPO, or ~/.m2/repository), where
`mvn dependency:get` with `org.apache.kafka:kafka-tools:4.3.1`, `org.apache.kafka:kafka_2.13:4.3.1` and
`org.slf4j:slf4j-simple:1.7.36` brings them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

KAFKA_VERSION = "4.3.1"
TOOLS = "org.apache.kafka.tools"
_NEEDED = (f"kafka-tools-{KAFKA_VERSION}.jar", f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-clients-{KAFKA_VERSION}.jar")
_LEFT_OUT = re.compile(r"(-sources|-javadoc|-tests?)\.jar$")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
QUICK = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", QUIET)
"""Java options for something short: quick to start, and slower than Java can be."""

_VERSION = re.compile(r"-(\d[\w.]*)\.jar$")


@functools.cache
def class_path() -> str:
    """Return the class path with Kafka's programs, "" without them."""
    folder = os.environ.get("LOGFLUME_KAFKA_JARS")
    repository = Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository")
    jars = list(Path(folder).glob("*.jar")) if folder else _newest(repository)
    names = {jar.name for jar in jars}
    return os.pathsep.join(sorted(map(str, jars))) if names.issuperset(_NEEDED) else ""


def _newest(repository: Path) -> list[Path]:
    """Return one jar per artifact: of Kafka that of the version asked for, else the newest."""
    found: dict[Path, Path] = {}
    for jar in repository.glob("**/*.jar"):
        is_kafka = "/org/apache/kafka/" in str(jar)
        if _LEFT_OUT.search(jar.name) or (is_kafka and KAFKA_VERSION not in jar.name) or "/apache/maven/" in str(jar):
            continue
        artifact = jar.parent.parent
        if artifact not in found or _numbers(found[artifact]) < _numbers(jar):
            found[artifact] = jar
    return list(found.values())


def _numbers(jar: Path) -> list[int]:
    version = _VERSION.search(jar.name)
    return [int(number) for number in re.findall(r"\d+", version.group(1))] if version else []


def missing() -> str:
    """Return why Kafka's programs cannot run here, "" if they can."""
    if shutil.which("java") is None:
        return "needs Java 17 or newer: apt-get install openjdk-17-jre-headless"
    if not class_path():
        return f"needs the jars of Apache Kafka {KAFKA_VERSION} in LOGFLUME_KAFKA_JARS or the local Maven repository"
    return ""


def command(main: str, *args: str, options: Sequence[str] = QUICK) -> list[str]:
    """Return the command that runs a main class."""
    return ["java", *options, "-cp", class_path(), main, *args]


def run(main: str, *args: str, options: Sequence[str] = QUICK, timeout_s: float = 100) -> str:
    """Run a main class to its end; return what it printed. It must succeed."""
    done = subprocess.run(command(main, *args, options=options), capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


class KafkaBroker:
    """Apache Kafka on this machine: one node, broker and controller, on loopback. Stop it when done.

    `listeners`: security protocols, each with a listener of its name beside the plain one; their ports are in `ports`.
    `users`: who may log in by SCRAM -> password.
    """

    def __init__(
        self,
        folder: Path,
        *configs: str,
        options: Sequence[str] = QUICK,
        listeners: Sequence[str] = (),
        users: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.ports = {name: _free_port() for name in ("PLAINTEXT", *listeners)}
        self.port, controller = self.ports["PLAINTEXT"], _free_port()
        self.data = folder / "data"
        addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        protocols = ",".join(f"{name}:{name}" for name in self.ports)
        settings = [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            f"listeners={addresses},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners={addresses}",
            "controller.listener.names=CONTROLLER",
            f"listener.security.protocol.map={protocols},CONTROLLER:PLAINTEXT",
            f"log.dirs={self.data}",
            "offsets.topic.num.partitions=1",
            "transaction.state.log.num.partitions=1",
            *(
                f"{topic}.replication.factor=1"
                for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
            ),
            *(f"{topic}.min.isr=1" for topic in ("transaction.state.log", "share.coordinator.state.topic")),
            "group.initial.rebalance.delay.ms=0",
            *configs,
        ]
        file = folder / "server.properties"
        file.write_text("\n".join(settings) + "\n")
        scram = [
            f"--add-scram={mechanism}=[name={user},password={password}]"
            for user, password in users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        run("kafka.tools.StorageTool", "format", "-t", "bG9nZmx1bWUtdGVzdHMtMA", "-c", str(file), *scram)
        self._folder, self._command = folder, command("kafka.Kafka", str(file), options=options)
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, anew after it was killed, and wait until it listens."""
        with (self._folder / "kafka.log").open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 90
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("Apache Kafka did not start:\n" + (self._folder / "kafka.log").read_text()[-3000:])
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it, in order if it can."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """SIGKILL: no last words."""
        self.process.kill()
        self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
