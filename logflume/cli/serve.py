"""`logflume serve`: the broker, the SQL engine and the connectors, each in a process of its own under one supervisor (D14)."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import make_app
from logflume.cli.supervisor import Child, Supervisor
from logflume.log import InvalidInput, LogflumeError

app = make_app("", has_default=True)
READY_TIMEOUT_S = 60.0


@app.command()
def serve(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the log and the state are kept.")] = Path("data"),
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where Kafka clients connect.")] = "127.0.0.1:9092",
    workers: Annotated[
        int, typer.Option(min=0, max=64, help="Engine processes for SQL queries; 0: broker alone, no SQL engine.")
    ] = 1,
    connector: Annotated[
        list[Path] | None, typer.Option("--connector", metavar="FILE", help="Run this connector too; may be repeated.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A broker config under Kafka's name; may be repeated.")
    ] = None,
) -> None:
    """Start everything; Ctrl-C stops it cleanly, and the data stays for the next start.

    Example: logflume serve --data ./data --listen 127.0.0.1:9092
    """
    host, port = host_and_port(listen)
    check_free(host, port)
    for path in connector or []:
        if not path.is_file():
            raise InvalidInput(f"--connector {path}: no such file")
    supervisor = Supervisor(lambda line: print(line, file=sys.stderr, flush=True))
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, lambda *_: supervisor.stop())
    python = [sys.executable, "-m"]
    configs = [part for pair in config or [] for part in ("--config", pair)]
    broker = Child("broker", [*python, "logflume.log.server", "--data", str(data), "--listen", listen, *configs])
    supervisor.add(broker)
    wait_ready(broker, host, port)
    print(f"broker    {host}:{port}   (any Kafka client)")
    print(f"data      {data.resolve()}")
    missing = missing_modules() if workers else []
    if missing:
        print(f"sql       left out: needs {', '.join(missing)}: pip install 'logflume[sql]'")
        workers = 0
    for number in range(workers):
        state = data.resolve() / "engine" / f"worker-{number}"
        argv = [*python, "logflume.cli.worker", "--bootstrap", listen, "--state-dir", str(state)]
        supervisor.add(Child(f"engine-{number}", argv))
    if workers:
        print(f"sql       logflume sql --bootstrap {host}:{port}")
    for path in connector or []:
        supervisor.add(Child(path.stem, [*python, "logflume", "connect", "run", str(path), "--bootstrap", listen]))
        print(f"connector {path}")
    print("ready; Ctrl-C stops", flush=True)
    supervisor.run()


def missing_modules() -> list[str]:
    """Return which modules of the SQL engine are not installed."""
    return [name for name in ("lark", "rocksdict", "starlette", "uvicorn", "httpx") if find_spec(name) is None]


def host_and_port(listen: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT.

    >>> host_and_port("127.0.0.1:9092")
    ('127.0.0.1', 9092)
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"--listen expects HOST:PORT with a port of 1 to 65535, found {listen!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_free(host: str, port: int) -> None:
    """Refuse an address that is in use, before anything starts."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; choose another --listen"
            ) from error


def wait_ready(broker: Child, host: str, port: int) -> None:
    """Return when the broker accepts connections; raises with its last words when it ends first."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        assert broker.process is not None
        if broker.process.poll() is not None:
            broker.process.wait()
            time.sleep(0.1)
            last = broker.last_lines[-1] if broker.last_lines else f"exit code {broker.process.returncode}"
            raise LogflumeError(f"the broker did not start: {last}")
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise LogflumeError(f"the broker did not accept connections on {host}:{port} within {READY_TIMEOUT_S:g} s")
