"""`logflume cert`: issue, show and renew certificates with the authority that `logflume secure init` made."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import Json, make_app, print_object, print_rows
from logflume.log import InvalidInput
from logflume.log.security import Issued, describe_certificates, issue
from logflume.log.security.issuing import CERTIFICATE_DAYS

app = make_app(
    "Issue, show and renew certificates of the authority in a directory that `logflume secure init` made.\n\n"
    "Example: logflume cert show secure/server.pem"
)
DEFAULT_DIR = Path("secure")
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca-key.pem"
MAX_FILE_BYTES = 1 << 20
DAY_S = 86_400
Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the authority is.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="HOST", help="A server's host or address; may be repeated.")]
Days = Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")]


@app.command("issue")
def issue_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: a user, or a server's name with --host.")],
    host: Hosts = None,
    days: Days = CERTIFICATE_DAYS,
    directory: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Issue a certificate of a client, or of a server (--host); it is written with its key to DIR/NAME.pem.

    Example: logflume cert issue alice --dir secure
    """
    path = directory / f"{name}.pem"
    if "/" in name or name.startswith(".") or path.exists():
        raise InvalidInput(f"{path} exists, or is no name of a file in {directory}; renew it, or choose another name")
    issued = issue(read_authority(directory), name, now=now(), hosts=host or (), days=days, is_server=bool(host))
    write_private(path, issued.key_pem + issued.certificate_pem)
    _show([path], as_json=as_json)


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Certificates (PEM).")], as_json: Json = False
) -> None:
    """Show whose certificates are, for which hosts, and until when.

    Example: logflume cert show secure/server.pem
    """
    _show(files, as_json=as_json)


@app.command()
def renew(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate with its key, which the authority issued.")],
    days: Days = CERTIFICATE_DAYS,
    directory: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Issue a certificate for the same name and hosts in place of an old one; a broker takes it over within seconds.

    Example: logflume cert renew secure/server.pem --dir secure
    """
    old = describe_certificates(_read(file), where=str(file))[0]
    name = old.subject.removeprefix("CN=")
    if not old.subject.startswith("CN=") or "," in name:
        raise InvalidInput(f"{file} is a certificate of {old.subject}, which `logflume cert` did not issue")
    issued = issue(read_authority(directory), name, now=now(), hosts=old.names, days=days, is_server=bool(old.names))
    temporary = file.with_name(f".{file.name}.new")
    write_private(temporary, issued.key_pem + issued.certificate_pem)
    temporary.replace(file)
    _show([file], as_json=as_json)


def read_authority(directory: Path) -> Issued:
    """Return the authority of a directory. Raises InvalidInput."""
    if not (directory / AUTHORITY_KEY).is_file():
        raise InvalidInput(f"there is no authority in {directory}; `logflume secure init --dir {directory}` makes one")
    return Issued(_read(directory / AUTHORITY), _read(directory / AUTHORITY_KEY))


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read. Raises InvalidInput."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from None


def now() -> datetime:
    return datetime.now(UTC)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from None


def _show(files: list[Path], *, as_json: bool) -> None:
    rows = []
    for path in files:
        for each in describe_certificates(_read(path), where=str(path)):
            left = int(each.expires_in_s(time.time()) // DAY_S)
            rows.append((str(path), each.subject, ", ".join(each.names), each.issuer, each.not_after.isoformat(), left))
    columns = ("file", "subject", "hosts", "issuer", "valid until", "days left")
    if len(rows) == 1:
        print_object(dict(zip(columns, rows[0], strict=True)), as_json=as_json)
    else:
        print_rows(columns, rows, as_json=as_json)
