"""A broker made secure by two commands, used by other people's clients and by our commands; one that is not is refused."""

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from logflume.cli import main
from logflume.cli.serve import way_in
from logflume.log import Security, connect
from logflume.log.client import Profile, Profiles, save_profiles

from ._command import free_port, read_until
from ._command import run as run_process
from .test_command_line_access import rows, run


class Place:
    """A directory with what `secure init` made, and the port."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.port = root, port
        self.secure, self.data = root / "secure", root / "data"

    def secret(self, user: str) -> str:
        return (self.secure / f"{user}.password").read_text().strip()

    def client(self, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        return {
            "bootstrap.servers": f"localhost:{self.port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.secure / "ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self.secret(user),
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("two-commands")
    patch = pytest.MonkeyPatch()
    patch.setenv("LOGFLUME_CONFIG", str(root / "config.toml"))
    patch.chdir(root)
    made = Place(root, free_port())
    out, _ = run("secure", "init", "--port", str(made.port))
    assert not any(made.secret(user) in out for user in ("admin", "app"))
    command = [sys.executable, "-m", "logflume", "serve", "--config-file", "secure/broker.properties", "--registry", "off"]
    process = subprocess.Popen([*command, "--workers", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        read_until(process, "ready; Ctrl-C stops")
        yield made
    finally:
        process.terminate()
        process.wait(30)
        patch.undo()


def test_other_people_s_clients_and_every_command_go_through_it(place: Place) -> None:
    run("topic", "create", "flights", "--profile", "local-app")
    producer = Producer(place.client("app", "PLAIN"))
    producer.produce("flights", b"by confluent")
    assert producer.flush(30) == 0
    run_process("produce", "flights", "--profile", "local-app", stdin="by logflume\n")
    consumer = Consumer(place.client("app") | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["flights"])
    assert [consumer.poll(30).value() for _ in range(2)] == [b"by confluent", b"by logflume"]
    consumer.close()
    assert "flights" in {row["topic"] for row in rows("topic", "list", "--profile=local-admin")}
    assert rows("profile", "test", "local-app")[0]["topics"] >= 1


def test_rights_are_those_of_the_user(place: Place) -> None:
    secret = place.root / "eve.password"
    secret.write_text("eve's own password\n")
    run("user", "add", "eve", "--password-file", str(secret), "--profile", "local-admin")
    assert "eve" in {row["user"] for row in rows("user", "list", "--profile", "local-admin")}
    settings = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=eve", f"sasl.password.file={secret}"]
    settings.append(f"ssl.ca.location={place.secure / 'ca.pem'}")
    run("profile", "add", "eve", "--bootstrap", f"localhost:{place.port}", *(x for each in settings for x in ("--set", each)))
    assert rows("topic", "list", "--profile", "eve") == []
    assert "CLUSTER_AUTHORIZATION_FAILED" in run("user", "list", "--profile", "eve", code=1)[1]
    run("acl", "create", "--principal", "User:eve", "--operation", "all", "--topic", "flights", "--profile", "local-admin")
    assert [row["topic"] for row in rows("topic", "list", "--profile", "eve")] == ["flights"]
    run("user", "delete", "eve", "--profile", "local-admin")
    assert "refused the login as 'eve'" in run("topic", "list", "--profile", "eve", code=1)[1]
    assert "unknown user 'eve'" in run("user", "delete", "eve", "--profile", "local-admin", code=1)[1]


def test_no_secret_is_in_a_process_list_or_a_profile(place: Place) -> None:
    secrets = [place.secret(user) for user in ("admin", "app")]
    shown = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(secret.encode() in line for secret in secrets for line in shown)
    assert not any(secret in (place.root / "config.toml").read_text() for secret in secrets)
    assert not any(secret in path.read_text(errors="replace") for secret in secrets for path in place.data.glob("*.json"))


def test_a_renewed_certificate_is_served_without_a_restart(place: Place) -> None:
    before = rows("cert", "show", "secure/server.pem")[0]
    run("cert", "renew", "secure/server.pem", "--days", "100")
    after = rows("cert", "show", "secure/server.pem")[0]
    assert (before["hosts"], before["subject"]) == (after["hosts"], after["subject"])
    assert after["days left"] == 99
    deadline_s = time.monotonic() + 30
    served = None
    while served != after["valid until"][:10] and time.monotonic() < deadline_s:
        served = _served_until(place)
        time.sleep(0.02)
    assert served == after["valid until"][:10]


def _served_until(place: Place) -> str:
    import socket
    import ssl
    from datetime import datetime

    context = ssl.create_default_context(cafile=str(place.secure / "ca.pem"))
    with context.wrap_socket(socket.create_connection(("localhost", place.port)), server_hostname="localhost") as wrapped:
        ends_s = ssl.cert_time_to_seconds(str(wrapped.getpeercert()["notAfter"]))  # type: ignore[index]
    return datetime.fromtimestamp(ends_s, UTC).date().isoformat()


def test_a_client_certificate_is_issued(place: Place) -> None:
    shown = rows("cert", "issue", "reports")[0]
    assert (shown["subject"], shown["issuer"]) == ("CN=reports", "CN=logflume authority")
    assert "exists" in run("cert", "issue", "reports", code=1)[1]


@pytest.mark.parametrize("module", ["logflume.log.server", "logflume.serve"])
def test_a_broker_without_authentication_is_for_this_machine_only(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *(["logflume", "serve"] if module == "logflume.serve" else [module])]
    options = ["--data", str(tmp_path / "d"), "--listen", f"0.0.0.0:{free_port()}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "has no authentication" in done.stderr
    assert "logflume secure init" in done.stderr
    assert not (tmp_path / "d" / "meta.properties").exists()


def test_who_serves_a_secured_broker_is_told_the_profile_to_come_by(tmp_path: Path) -> None:
    configs = {"listeners": "SASL_SSL://127.0.0.1:9093", "advertised.listeners": "SASL_SSL://localhost:9093"}
    profiles = tmp_path / "config.toml"
    assert way_in(configs, "127.0.0.1:9093", profiles) == "--bootstrap 127.0.0.1:9093"
    made = [
        Profile("local-app", "localhost:9093", {"security.protocol": "SASL_SSL"}),
        Profile("local-admin", "localhost:9093", {"security.protocol": "SASL_SSL"}),
        Profile("a-admin", "localhost:9094", {"security.protocol": "SASL_SSL"}),
        Profile("plain-admin", "localhost:9093", {}),
    ]
    save_profiles(profiles, Profiles({each.name: each for each in made}))
    assert way_in(configs, "127.0.0.1:9093", profiles) == "--profile local-admin"
    assert way_in({}, "127.0.0.1:9092", profiles) == "--bootstrap 127.0.0.1:9092"
    profiles.write_text("[nonsense")
    assert way_in(configs, "127.0.0.1:9093", profiles) == "--bootstrap 127.0.0.1:9093"


def test_insecure_is_said_aloud(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path), "--listen", "0.0.0.0:0", "--insecure"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        read_until(process, "warning: --insecure: whoever reaches a listener")
        read_until(process, "broker ready")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("profile", "add", "a", "--bootstrap", "h:1", "--set", "sasl.password=hunter2"), "name where it is kept"),
        (("profile", "add", "1", "--bootstrap", "h:1"), "begins with a letter"),
        (("profile", "add", "a", "--bootstrap", "h:1", "--set", "sasl.mechanism=PLAIN"), "need security.protocol"),
        (("profile", "use", "nobody"), "unknown profile 'nobody'"),
        (("topic", "list", "--profile", "nobody"), "unknown profile 'nobody'"),
        (("secure", "init", "--dir", "/proc"), "is not empty"),
        (("cert", "renew", "nothing.pem"), "cannot read nothing.pem"),
        (("cert", "issue", "../x"), "no name of a file"),
        (("user", "add", "a", "--password-file", "nothing"), "cannot read a password from nothing"),
    ],
)
def test_mistakes_are_one_line(args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGFLUME_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)
    _, err = run(*args, code=1)
    assert says in err
    assert "hunter2" not in err


def test_a_password_is_asked_for_or_given_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(tmp_path / "d") as log:
        log.admin().create_topic("t")
    assert "no password" in run("user", "add", "a", "--data", str(tmp_path / "d"), code=1)[1]
    monkeypatch.setenv("LOGFLUME_NEW_PASSWORD", "short")
    assert "at least 8 characters" in run("user", "add", "a", "--data", str(tmp_path / "d"), code=1)[1]
    monkeypatch.setenv("LOGFLUME_NEW_PASSWORD", "long enough")
    assert main(["user", "add", "a", "--data", str(tmp_path / "d")]) == 0
    assert Security.from_settings({}).protocol == "plaintext"
