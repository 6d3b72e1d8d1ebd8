"""`logflume registry`: a schema registry alone, beside any Kafka cluster; `logflume serve` has one of its own."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logflume.cli.common import Bootstrap, Data, Insecure, make_app, where
from logflume.log import InvalidInput, UnknownName
from logflume.log.children import end_with_parent
from logflume.log.logs import LogFormat, configure_logs

if TYPE_CHECKING:
    from logflume.log.registry import Tls

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
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            dir_okay=False,
            help="Users, own or the cluster's, and their rights by subject (TOML).",
        ),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Speak HTTPS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    tls_ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Who signed the other instances' certificates.")] = None,
    insecure: Insecure = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="text_chars, depth, nodes or references of a schema, versions of a subject, or body_bytes.",
        ),
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Serve the registry of a cluster until stopped. Several instances may run: one writes, the others forward to it.

    Example: logflume registry serve --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8081
    """
    from logflume.log.batch.tiers import kernel_tier
    from logflume.log.client import check_login
    from logflume.log.registry import RegistryServer, UserFile

    kernel_tier().stay_out()
    end_with_parent(signal.SIGTERM)
    host, port = parse_listen(listen, option="--listen")
    configure_logs(log_format)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    place = where(data, bootstrap, may_create=True)
    server = RegistryServer(
        place,
        host=host,
        port=port,
        advertise=advertise,
        topic=topic,
        group_id=group,
        users=None if users is None else UserFile(users, login=partial(check_login, place)),
        tls=parse_tls(tls_certificate, tls_key, tls_ca),
        is_insecure=insecure,
        **parse_limits(limit or []),
    )
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: server.stop())
    server.start()
    print(f"registry  {server.address}", flush=True)
    server.wait()


def parse_tls(certificate: Path | None, key: Path | None, ca: Path | None) -> Tls | None:
    """Return the files by which HTTPS is spoken, None for HTTP. Raises InvalidInput: one without the other."""
    from logflume.log.registry import Tls

    if certificate is None and key is None and ca is None:
        return None
    if certificate is None or key is None:
        raise InvalidInput("HTTPS needs both --tls-certificate and --tls-key")
    return Tls(str(certificate), str(key), "" if ca is None else str(ca))


def parse_limits(texts: list[str]) -> dict[str, Any]:
    """Return the limits of NAME=NUMBER as arguments of the server.

    >>> parse_limits(["depth=10", "body_bytes=1000"])
    {'limits': Limits(text_chars=1000000, depth=10, nodes=100000, references=256, versions=10000), 'max_body_bytes': 1000}
    """
    from logflume.log.registry import Limits

    names = [*Limits.__dataclass_fields__, "body_bytes"]
    found: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in names:
            raise UnknownName("limit", name, names)
        if not number.isdecimal() or int(number) < 1:
            raise InvalidInput(f"--limit {name} is a number of at least 1, found {number!r}")
        found[name] = int(number)
    body = {"max_body_bytes": found.pop("body_bytes")} if "body_bytes" in found else {}
    return {"limits": Limits(**found), **body}


def parse_listen(text: str, *, option: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; port 0 is a free one.

    >>> parse_listen("127.0.0.1:0", option="--listen")
    ('127.0.0.1', 0)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{option} expects HOST:PORT, found {text!r}; for example {DEFAULT_LISTEN}")
    return host.strip("[]") or "127.0.0.1", int(port)
