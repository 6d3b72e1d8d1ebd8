"""A stranger secures a broker by README's two commands, and everything goes through it: a client of others, a topology, SQL, a
connector and a backfill on Spark; no password stands in what any of them prints, logs, plans or keeps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ._command import LOGFLUME, LOOK_EVERY_S, free_port, read_until
from ._delays import DELAYS, flight

pytestmark = pytest.mark.timeout(600)  # a dozen processes, one after the other

CONNECTOR = 'name = "customers"\nconnector = "file-source"\nfile = "customers.csv"\ntopic = "customers"\n'
STATEMENTS = """
CREATE STREAM flights (k STRING KEY, carrier STRING, dep_delay DOUBLE) WITH (KAFKA_TOPIC = 'flights', VALUE_FORMAT = 'JSON');
SELECT carrier, dep_delay FROM flights EMIT CHANGES LIMIT 2;
"""
SPARK_CONF = """spark.eventLog.enabled true
spark.eventLog.dir {directory}
spark.eventLog.compress false
spark.log.level INFO
"""


@dataclass
class Stranger:
    """Somebody with a shell in a directory; what he sees is kept."""

    home: Path
    port: int
    environment: dict[str, str]
    seen: list[str] = field(default_factory=list)

    def run(self, *args: str, stdin: str = "", user: str = "app") -> str:
        """Run a command; it must go well. Returns what it printed."""
        command = [*LOGFLUME, *args, *(["--profile", f"local-{user}"] if user else [])]
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )
        self.seen += [done.stdout, done.stderr]
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def secret(self, user: str) -> str:
        return (self.home / "secure" / f"{user}.password").read_text().strip()

    def send(self, topic: str, records: list[tuple[str, dict[str, object]]]) -> None:
        """Send JSON records with confluent-kafka, as README says that any client does."""
        settings = {
            "bootstrap.servers": f"localhost:{self.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "app",
            "sasl.password": self.secret("app"),
            "ssl.ca.location": str(self.home / "secure" / "ca.pem"),
        }
        producer = Producer(settings)
        for key, value in records:
            producer.produce(topic, json.dumps(value), key)
        assert producer.flush(60) == 0

    def counted(self) -> dict[str, int]:
        """Return how many late flights of each airline the results have."""
        found = {}
        for line in self.run("consume", "delays", "--json").splitlines():
            record = json.loads(line)
            found["United" if "United" in str(record["key"]) else "Delta"] = json.loads(record["value"])["flights"]
        return found

    def wait_for(self, wanted: dict[str, int]) -> None:
        """Each question takes a second; pytest's time limit is what ends it."""
        while self.counted() != wanted:
            time.sleep(LOOK_EVERY_S)

    def check_secrets(self, texts: dict[str, str]) -> None:
        for user in ("admin", "app"):
            for where, text in texts.items():
                assert self.secret(user) not in text, f"the password of {user} in {where}"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    home = tmp_path_factory.mktemp("stranger")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGFLUME_")}
    made = Stranger(home, free_port(), environment | {"LOGFLUME_CONFIG": str(home / "config.toml")})
    made.run("secure", "init", "--port", str(made.port), user="")
    command = [sys.executable, "-m", "logflume", "serve", "--config-file", "secure/broker.properties", "--registry", "off"]
    with (home / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--workers", "0"], cwd=home, env=made.environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        made.seen.append(read_until(process, "ready; Ctrl-C stops"))
        made.run("topic", "create", "flights", "--partitions", "2")
        made.run("topic", "create", "airlines", "--partitions", "2", "--config", "cleanup.policy=compact")
        made.send("airlines", [("UA", {"carrier": "UA", "name": "United"}), ("DL", {"carrier": "DL", "name": "Delta"})])
        made.send("flights", [flight(n) for n in range(60)])
        yield made
    finally:
        process.terminate()
        process.wait(300)


def test_a_connector_and_sql_go_through_it(stranger: Stranger) -> None:
    (stranger.home / "customers.csv").write_text("id,name\n1,Ada\n2,Bob\n")
    (stranger.home / "customers.toml").write_text(CONNECTOR)
    stranger.run("connect", "run", "customers.toml", "--once")
    assert "Ada" in stranger.run("consume", "customers")
    rows = stranger.run("sql", "-e", STATEMENTS, user="admin")
    assert rows.count("20.0") + rows.count("5.0") >= 1
    stranger.check_secrets({"the output": "\n".join(stranger.seen)})


@pytest.mark.slow
@pytest.mark.spark
def test_a_backfill_on_spark_and_the_topology_after_it_go_through_it(stranger: Stranger) -> None:
    conf, events = stranger.home / "conf", stranger.home / "events"
    conf.mkdir()
    events.mkdir()
    (conf / "spark-defaults.conf").write_text(SPARK_CONF.format(directory=events.as_uri()))
    stranger.environment["SPARK_CONF_DIR"] = str(conf)
    plan = stranger.run("backfill", str(DELAYS), "--dry-run")
    done = stranger.run("backfill", str(DELAYS), "--engine", "spark", "--conf", "spark.master=local[1]")
    assert "goes on at the cut" in done
    stranger.wait_for({"United": 15, "Delta": 15})
    stranger.send("flights", [flight(61), flight(63)])
    command = [*LOGFLUME, "run", str(DELAYS), "--profile", "local-app", "--state-dir", str(stranger.home / "state")]
    with (stranger.home / "live.log").open("w") as log:
        live = subprocess.Popen(command, cwd=stranger.home, env=stranger.environment, stdout=log, stderr=log)
    try:
        stranger.wait_for({"United": 16, "Delta": 16})
        arguments = "\n".join(
            path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
        )
        live.send_signal(signal.SIGINT)
        assert live.wait(300) == 0
    finally:
        live.kill()
        live.wait()
    told = {path.name: path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()}
    assert any("SparkListenerApplicationEnd" in text for text in told.values()), "Spark kept its events, which its UI shows"
    told |= {path.name: path.read_text() for path in stranger.home.glob("*.log")}
    stranger.check_secrets(told | {"the plan": plan, "the output": "\n".join(stranger.seen), "the list of processes": arguments})
