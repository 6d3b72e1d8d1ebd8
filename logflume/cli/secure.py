"""`logflume secure init`: everything that a broker needs before others may reach it, so that the next command is `serve`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.cert import AUTHORITY, AUTHORITY_KEY, now, write_private
from logflume.cli.common import make_app
from logflume.cli.profile import put_profile
from logflume.log import InvalidInput
from logflume.log.security import issue, make_authority

if TYPE_CHECKING:
    from logflume.log.client import Profile

app = make_app(
    "Make what a broker needs before others may reach it: an authority, certificates, users, rules and settings.\n\n"
    "Example: logflume secure init --host broker.example --data ./data"
)
ADMIN, APPLICATION = "admin", "app"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DEFAULT_PORT = 9093
LOOPBACK = ("localhost", "127.0.0.1")


@app.callback()
def callback() -> None:
    """Keep `init` a command of its own."""


@app.command()
def init(
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="A host or address by which clients reach the broker; the first is told them."
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = DEFAULT_PORT,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data directory; the broker is not running.")] = Path(
        "data"
    ),
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go; new or empty.")] = Path("secure"),
    profile: Annotated[str, typer.Option("--name", metavar="NAME", help="The profiles are NAME-admin and NAME-app.")] = "local",
) -> None:
    """Make an authority, the server's certificate, the users admin and app, their rules, settings of the broker, and profiles.

    Without --host the broker is for this machine. app may use all topics, groups and transactional ids; change that with
    `logflume acl`.

    Example: logflume secure init --host broker.example
    """
    from logflume.log.client import check_profile_name

    hosts = host or ["localhost"]
    check_profile_name(f"{profile}-{ADMIN}")
    if directory.exists() and any(directory.iterdir()):
        raise InvalidInput(f"{directory} is not empty: nothing there is replaced; choose another --dir")
    authority = make_authority("logflume authority", now=now())
    server = issue(authority, hosts[0][:64], now=now(), hosts=[*dict.fromkeys((*hosts, *LOOPBACK))], is_server=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    write_private(directory / AUTHORITY, authority.certificate_pem)
    write_private(directory / AUTHORITY_KEY, authority.key_pem)
    write_private(directory / "server.pem", server.key_pem + server.certificate_pem)
    passwords = {user: secrets.token_urlsafe(24) for user in (ADMIN, APPLICATION)}
    for user, password in passwords.items():
        write_private(directory / f"{user}.password", password.encode() + b"\n")
    settings = directory / "broker.properties"
    write_private(settings, broker_settings(directory.resolve(), data.resolve(), hosts[0], port, is_local=not host).encode())
    make_users(data, passwords)
    for user in passwords:
        put_profile(user_profile(f"{profile}-{user}", f"{hosts[0]}:{port}", user, directory.resolve()))
    print(f"authority  {directory / AUTHORITY}   (clients need this file; keep {AUTHORITY_KEY} safe)")
    print(f"server     {directory / 'server.pem'}   ({', '.join(dict.fromkeys((*hosts, *LOOPBACK)))})")
    print(f"users      {', '.join(f'{user} ({directory / user}.password)' for user in passwords)}")
    print(f"profiles   {', '.join(f'{profile}-{user}' for user in passwords)}")
    print(f"next:      logflume serve --config-file {settings}")
    print(f"then:      logflume topic list --profile {profile}-{APPLICATION}")


def broker_settings(directory: Path, data: Path, host: str, port: int, *, is_local: bool) -> str:
    """Return the broker's settings as Kafka's properties."""
    bound = "127.0.0.1" if is_local else ""
    lines = [
        f"log.dirs={data}",
        f"listeners=SASL_SSL://{bound}:{port}",
        f"advertised.listeners=SASL_SSL://{host}:{port}",
        "sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        f"ssl.keystore.location={directory / 'server.pem'}",
        "ssl.keystore.type=PEM",
        f"authorizer.class.name={AUTHORIZER}",
        f"super.users=User:{ADMIN}",
        "",
    ]
    return "\n".join(lines)


def make_users(data: Path, passwords: dict[str, str]) -> None:
    """Add the users to the log, and what the application may. Raises as `start_embedded`."""
    from logflume.log import connect
    from logflume.log.access import CLUSTER, AclRule, create_acls, set_password
    from logflume.log.server import start_embedded

    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    principal = f"User:{APPLICATION}"
    rules = [AclRule("cluster", CLUSTER, principal, "idempotent_write")]
    rules += [AclRule(resource, "*", principal, "all") for resource in ("topic", "group", "transactional_id")]
    configs = {"authorizer.class.name": AUTHORIZER, "listeners": ""}
    with start_embedded(str(data), configs=configs) as broker, connect(str(broker.addresses[-1])) as log:
        for user, password in passwords.items():
            set_password(log.admin(), user, password)
        create_acls(log.admin(), rules)


def user_profile(name: str, bootstrap: str, user: str, directory: Path) -> Profile:
    """Return the profile of a user; his password stays in its file."""
    from logflume.log.client import Profile

    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password.file": str(directory / f"{user}.password"),
        "ssl.ca.location": str(directory / AUTHORITY),
    }
    return Profile(name, bootstrap, settings)
