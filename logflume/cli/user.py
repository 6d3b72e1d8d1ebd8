"""`logflume user`: who may log in: add, list and delete users. A password is never an argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_object, print_rows
from logflume.log import InvalidInput

app = make_app(
    "Add, list and delete users, who log in by SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN.\n\n"
    "Example: logflume user add alice --data ./data"
)
PASSWORD_VARIABLE = "LOGFLUME_NEW_PASSWORD"
MAX_PASSWORD_BYTES = 1024
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="The password is the first line of a file; - for stdin.")
]


@app.command()
def add(
    name: Name, password_file: PasswordFile = None, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False
) -> None:
    """Add a user, or give him a new password: of a file, of $LOGFLUME_NEW_PASSWORD, or asked for.

    Example: logflume user add alice --password-file /run/secrets/alice --data ./data
    """
    from logflume.log.access import set_password

    password = new_password(password_file)
    with open_log(data, bootstrap) as log:
        set_password(log.admin(), name, password)
    print_object({"user": name, "set": True}, as_json=as_json)


@app.command("list")
def list_(data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """List the users and by what they may log in.

    Example: logflume user list --data ./data
    """
    from logflume.log.access import list_users

    with open_log(data, bootstrap) as log:
        users = list_users(log.admin())
    print_rows(("user", "mechanisms"), [(name, ", ".join(found)) for name, found in users.items()], as_json=as_json)


@app.command()
def delete(name: Name, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Delete a user; connections that he has are refused from then on. Rules about him stay (logflume acl delete).

    Example: logflume user delete alice --data ./data
    """
    from logflume.log.access import delete_user

    with open_log(data, bootstrap) as log:
        delete_user(log.admin(), name)
    print_object({"user": name, "deleted": True}, as_json=as_json)


def new_password(path: Path | None) -> str:
    """Return a password from a file, the environment or a prompt. Raises InvalidInput."""
    if path is not None:
        return _first_line(path)
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise InvalidInput(f"no password: give --password-file FILE (- for standard input), or set {PASSWORD_VARIABLE}")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _first_line(path: Path) -> str:
    try:
        if str(path) == "-":
            line = sys.stdin.readline(MAX_PASSWORD_BYTES)
        else:
            with path.open(encoding="utf-8") as file:
                line = file.readline(MAX_PASSWORD_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read a password from {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
        ) from None
    return line.rstrip("\r\n")
