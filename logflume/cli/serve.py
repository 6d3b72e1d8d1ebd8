"""`logflume serve`: the broker, the SQL engine and the connectors, each in a process of its own under one supervisor (D14)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import Functions, Insecure, make_app
from logflume.cli.registry import DEFAULT_LISTEN as DEFAULT_REGISTRY
from logflume.cli.registry import parse_listen, parse_tls
from logflume.cli.supervisor import Child, Supervisor
from logflume.log import InvalidInput, LogflumeError
from logflume.log.loopback import is_loopback, refuse_exposed
from logflume.log.server import (
    JsonFormatter,
    LogFormat,
    client_address,
    configured_data_dir,
    gather_configs,
    parse_address,
    refuse_contradictions,
    unix_socket_path,
)

app = make_app("", has_default=True)
READY_TIMEOUT_S = 180.0
RELAY_TIMEOUT_S = 5.0
DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_SQL = "127.0.0.1:8088"
REGISTRY_SETTING = "confluent.schema.registry.url"


@app.command()
def serve(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where the log and the state are kept; default: ./data.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Where Kafka clients connect; default: {DEFAULT_LISTEN}.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, max=64, help="Engine processes for SQL queries; 0: broker alone, no SQL engine.")
    ] = 1,
    connector: Annotated[
        list[Path] | None, typer.Option("--connector", metavar="FILE", help="Run this connector too; may be repeated.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A broker config under Kafka's name; may be repeated.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config-file", metavar="FILE", help="Broker configs: properties as Kafka's, or .toml.")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where /metrics, /healthz and /readyz are; default: a free loopback port."),
    ] = None,
    registry: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the schema registry listens (port 0: a free one); off: none.")
    ] = DEFAULT_REGISTRY,
    registry_users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Users of the registry and their rights by subject (TOML)."
        ),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Where the SQL server listens, or off; default: {DEFAULT_SQL}, off where ACLs are checked."
        ),
    ] = None,
    sql_users: Annotated[
        Path | None,
        typer.Option("--sql-users", metavar="FILE", dir_okay=False, help="Users of the SQL server and their rights (TOML)."),
    ] = None,
    sql_tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The SQL server speaks HTTPS with this certificate (PEM).")
    ] = None,
    sql_tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    functions: Functions = None,
    insecure: Insecure = False,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How the broker logs: text, or JSON lines.")] = "text",
) -> None:
    """Start everything; Ctrl-C stops it cleanly, and the data stays for the next start.

    Broker configs: --config, then LOGFLUME_CONFIG_* variables, then --config-file, then the defaults.

    Example: logflume serve --data ./data --listen 127.0.0.1:9092
    """
    from logflume.log.client import config_path

    configs = gather_configs(str(config_file) if config_file else None, config or [], os.environ)
    refuse_contradictions(configs, listen=[listen] if listen else [], data=str(data) if data else None, http=http)
    if data is None:
        data = Path(configured_data_dir(configs) if {"log.dirs", "log.dir"} & configs.keys() else "data")
    own_listen = [] if listen is None and configs.get("listeners") else ["--listen", listen or DEFAULT_LISTEN]
    address = None if own_listen else client_address(configs)
    host, port = address or host_and_port(listen or DEFAULT_LISTEN)
    own_way = f"unix:{unix_socket_path(str(data))}"  # our own processes come as the data's owner, whatever ACLs say
    check_free(host, port)
    registry_address = registry_listen(registry, has_users=registry_users is not None, is_insecure=insecure)
    # it acts as the data's owner for whoever it takes: where ACLs are checked, only if it has users or was asked for
    sql_options = sql_security(sql_users, sql_tls_certificate, sql_tls_key)
    function_options = checked_functions(functions) if workers else []
    has_sql = sql or ("off" if configs.get("authorizer.class.name") and sql_users is None else DEFAULT_SQL)
    has_tls = sql_tls_certificate is not None
    sql_address = sql_listen(has_sql, has_users=sql_users is not None, has_tls=has_tls, is_insecure=insecure) if workers else None
    for path in connector or []:
        if not path.is_file():
            raise InvalidInput(f"--connector {path}: no such file")
    supervisor = Supervisor(say_json if log_format == "json" else say_text)
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, lambda *_: supervisor.stop())
    python = [sys.executable, "-m"]
    if http or "logflume.http.listener" not in configs:
        http = http or f"127.0.0.1:{free_port()}"
        config = [*(config or []), f"logflume.http.listener={http}"]
    options = [
        "--log-format",
        log_format,
        *(["--insecure"] if insecure else []),
        *(part for pair in config or [] for part in ("--config", pair)),
    ]
    if registry_address is not None and REGISTRY_SETTING not in configs:
        options += ["--config", f"{REGISTRY_SETTING}=http://{registry_address}"]
    if config_file:
        options += ["--config-file", str(config_file)]
    broker = Child("broker", [*python, "logflume.log.server", "--data", str(data), *own_listen, *options], ends_last=True)
    supervisor.add(broker)
    wait_ready(broker, host, port, lambda: supervisor.is_stopping)
    if supervisor.is_stopping:
        supervisor.run()
        return
    print(f"broker    {host}:{port}   (any Kafka client)")
    print(f"data      {data.resolve()}")
    pages = parse_address(http or configs["logflume.http.listener"])
    print(f"metrics   {'http' if pages.is_loopback else 'https'}://{pages}/metrics   (/healthz, /readyz)")
    missing = missing_modules() if workers else []
    if missing:
        print(f"sql       left out: needs {', '.join(missing)}: pip install 'logflume[sql]'")
        workers = 0
    for number in range(workers):
        state = data.resolve() / "engine" / f"worker-{number}"
        argv = [*python, "logflume.cli.worker", "--bootstrap", own_way, "--state-dir", str(state), *function_options]
        supervisor.add(Child(f"engine-{number}", argv))
    if workers:
        print(f"sql       logflume sql {way_in(configs, f'{host}:{port}', config_path())}")
    listening: list[tuple[Child, str]] = []
    if sql_address is not None and workers:
        sql_options += [*function_options, *(["--insecure"] if insecure else [])]
        listening.append((start_sql(supervisor, sql_address, own_way, data, sql_options), sql_address))
    if registry_address is not None:
        child = start_registry(supervisor, registry_address, own_way, log_format, registry_users, is_insecure=insecure)
        listening.append((child, registry_address))
    for path in connector or []:
        supervisor.add(Child(path.stem, [*python, "logflume", "connect", "run", str(path), "--bootstrap", own_way]))
        print(f"connector {path}")
    for child, place in listening:
        wait_ready(child, *parse_listen(place, option=f"--{child.name}"), lambda: supervisor.is_stopping)
    print("ready; Ctrl-C stops", flush=True)
    supervisor.run()


def way_in(configs: Mapping[str, str], address: str, path: Path) -> str:
    """Return the option by which a shell reaches this broker: a profile that logs in there, else its address.

    `path`: where profiles are; one whose name ends in -admin comes first, for statements make topics.
    """
    from logflume.log.client import load_profiles

    try:
        profiles = load_profiles(path).by_name.values()
    except LogflumeError:
        return f"--bootstrap {address}"  # whoever names a profile is told what is wrong with them
    told = ",".join((configs.get("advertised.listeners", ""), configs.get("listeners", "")))
    addresses = {address, *(each.partition("://")[2] for each in told.split(","))}
    fitting = sorted(
        (each.name for each in profiles if each.bootstrap in addresses and "security.protocol" in each.settings),
        key=lambda name: (not name.endswith("-admin"), name),
    )
    return f"--profile {fitting[0]}" if fitting else f"--bootstrap {address}"


def missing_modules() -> list[str]:
    """Return which modules of the SQL engine are not installed."""
    return [name for name in ("rocksdict", "starlette", "uvicorn", "hypercorn") if find_spec(name) is None]


def checked_functions(path: Path | None) -> list[str]:
    """Return the option of the processes that run SQL. Raises InvalidInput: a file cannot be loaded."""
    if path is None or missing_modules():
        return []
    from logflume.sql.function_files import load_functions

    load_functions(path)
    return ["--functions", str(path.resolve())]


def sql_security(users: Path | None, certificate: Path | None, key: Path | None) -> list[str]:
    """Return the options of the SQL server's process. Raises InvalidInput: a file cannot be used."""
    if users is certificate is key is None:
        return []  # and nothing is loaded that only an installation with SQL has
    from logflume.log.registry import UserFile

    if users is not None:
        UserFile(users, login=lambda user, password: False)  # reads it; who logs in is the process's own business
    tls = parse_tls(certificate, key, None)
    if tls is not None:
        tls.check()
    given = {"--users": users, "--tls-certificate": certificate, "--tls-key": key}
    return [part for name, path in given.items() if path is not None for part in (name, str(path))]


def sql_listen(text: str, *, has_users: bool, has_tls: bool, is_insecure: bool) -> str | None:
    """Return where the SQL server will listen, with its port; None when it is off. Refuses an address in use, or open to all."""
    if text == "off":
        return None
    host, port = parse_listen(text, option="--sql")
    if not has_users and not is_loopback(host):
        raise InvalidInput(f"--sql expects a loopback address, or users (--sql-users FILE); found {host}")
    advice = "`logflume cert issue NAME --host HOST` makes the file that --sql-tls-certificate and --sql-tls-key take"
    refuse_exposed("the SQL server", host, has_users=True, has_tls=has_tls, advice=advice, is_insecure=is_insecure)
    check_free(host, port, option="--sql, or --sql off")
    return f"{host}:{port or free_port()}"


def start_sql(supervisor: Supervisor, address: str, own_way: str, data: Path, options: list[str]) -> Child:
    """Start the SQL server in a process of its own, beside the workers, which it asks; `wait_ready` sees it listen."""
    state = data.resolve() / "engine" / "sql-server"
    argv = [sys.executable, "-m", "logflume", "sql", "serve", "--bootstrap", own_way, "--listen", address, "--no-queries"]
    child = Child("sql", [*argv, "--state-dir", str(state), *options], stdout=subprocess.DEVNULL)
    supervisor.add(child)
    scheme = "https" if "--tls-certificate" in options else "http"
    print(f"          {scheme}://{address}   (ksqlDB's REST interface)")
    return child


def registry_listen(text: str, *, has_users: bool, is_insecure: bool) -> str | None:
    """Return where the registry will listen, with its port; None when it is off or cannot run here.

    Refuses an address in use, or open to all.
    """
    if text == "off":
        return None
    missing = [name for name in ("uvicorn", "httpx", "grpc_tools", "jsonschema") if find_spec(name) is None]
    if missing:
        print(f"registry  left out: needs {', '.join(missing)}: pip install 'logflume[registry]'")
        return None
    host, port = parse_listen(text, option="--registry")
    advice = "--registry off, and `logflume registry serve --users FILE --tls-certificate FILE --tls-key FILE` runs it by itself"
    refuse_exposed("the schema registry", host, has_users=has_users, has_tls=False, advice=advice, is_insecure=is_insecure)
    check_free(host, port, option="--registry, or --registry off")
    return f"{host}:{port or free_port()}"


def start_registry(
    supervisor: Supervisor, address: str, own_way: str, log_format: LogFormat, users: Path | None, *, is_insecure: bool
) -> Child:
    """Start the registry in a process of its own; `wait_ready` sees it listen."""
    argv = [sys.executable, "-m", "logflume", "registry", "serve", "--bootstrap", own_way, "--listen", address]
    argv += ["--log-format", log_format, *(["--users", str(users)] if users else [])]
    argv += ["--insecure"] if is_insecure else []
    child = Child("registry", argv, stdout=subprocess.DEVNULL)
    supervisor.add(child)
    print(f"registry  http://{address}   (schemas: Avro, JSON, Protobuf)")
    return child


def host_and_port(listen: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT.

    >>> host_and_port("127.0.0.1:9092")
    ('127.0.0.1', 9092)
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"--listen expects HOST:PORT with a port of 1 to 65535, found {listen!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_free(host: str, port: int, *, option: str = "--listen") -> None:
    """Refuse an address that is in use, before anything starts."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:  # the latter of what no name of a host is, such as a..b
            reason = getattr(error, "strerror", None) or error
            raise InvalidInput(f"cannot listen on {host}:{port}: {reason}; choose another {option}") from error


def say_text(source: str, line: str) -> None:
    """Write a line of a child's log, or the supervisor's own, for people."""
    print(f"[{source}] {line}" if source else line, file=sys.stderr, flush=True)


def say_json(source: str, line: str) -> None:
    """Write a line as one JSON object; what is one already is written as it is."""
    if not line.startswith("{"):
        record = logging.LogRecord(f"logflume.{source or 'serve'}", logging.INFO, "", 0, line, None, None)
        line = JsonFormatter().format(record)
    print(line, file=sys.stderr, flush=True)


def free_port() -> int:
    """Return a TCP port of this machine's loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_ready(child: Child, host: str, port: int, is_stopping: Callable[[], bool]) -> None:
    """Return when a child accepts connections, or when it is to stop; raises when it ends first, which it has told why."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and not is_stopping():
        assert child.process is not None
        if child.process.poll() is not None:
            assert child.relay is not None
            child.relay.join(RELAY_TIMEOUT_S)
            cause = "" if child.last_lines else f": exit code {child.process.returncode}"
            raise LogflumeError(f"the {child.name} did not start{cause}")
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    if is_stopping():
        return
    raise LogflumeError(f"the {child.name} did not accept connections on {host}:{port} within {READY_TIMEOUT_S:g} s")
