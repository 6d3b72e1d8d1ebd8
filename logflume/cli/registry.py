"""`logflume registry`: a schema registry alone, beside any Kafka cluster; `logflume serve` has one of its own."""

from __future__ import annotations

import logging
import signal
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, make_app, where
from logflume.log import InvalidInput
from logflume.log.children import end_with_parent
from logflume.log.logs import LogFormat, configure_logs

DEFAULT_LISTEN = "127.0.0.1:8081"
app = make_app(
    "Run a schema registry (Avro, JSON Schema, Protobuf) with Confluent's REST interface.\n\n"
    "Example: logflume registry serve --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8081"
)


@app.callback()
def _only_subcommands() -> None:
    """Keep `serve` a subcommand while it is the only one."""


@app.command()
def serve(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0: a free one.")] = DEFAULT_LISTEN,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the other instances reach this one; default: http://HOST:PORT.")
    ] = None,
    topic: Annotated[str, typer.Option(help="The compacted topic that keeps the schemas.")] = "_schemas",
    group: Annotated[str, typer.Option(help="Instances of one group elect one writer.")] = "logflume-registry",
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How it logs: text, or JSON lines.")] = "text",
    data: Data = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Serve the registry of a cluster until stopped. Several instances may run: one writes, the others forward to it.

    Example: logflume registry serve --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8081
    """
    from logflume.log.batch.tiers import kernel_tier
    from logflume.log.registry import RegistryServer

    kernel_tier().stay_out()
    end_with_parent(signal.SIGTERM)
    host, port = parse_listen(listen, option="--listen")
    configure_logs(log_format)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    server = RegistryServer(
        where(data, bootstrap, may_create=True), host=host, port=port, advertise=advertise, topic=topic, group_id=group
    )
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: server.stop())
    server.start()
    print(f"registry  {server.address}", flush=True)
    server.wait()


def parse_listen(text: str, *, option: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; port 0 is a free one.

    >>> parse_listen("127.0.0.1:0", option="--listen")
    ('127.0.0.1', 0)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{option} expects HOST:PORT, found {text!r}; for example {DEFAULT_LISTEN}")
    return host.strip("[]") or "127.0.0.1", int(port)
