"""`logflume profile`: where a log is and how to log in there, under a name: add, list, use and test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Json, make_app, print_done, print_object, print_rows
from logflume.log import InvalidInput, UnknownName

if TYPE_CHECKING:
    from logflume.log.client import Profile

app = make_app(
    "Profiles say where a log is and how to log in there; every command takes --profile NAME.\n\n"
    "Example: logflume topic list --profile prod"
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]


@app.command()
def add(
    name: Name,
    bootstrap: Annotated[str, typer.Option("--bootstrap", metavar="HOST:PORT", help="Addresses of the brokers.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting under librdkafka's name; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a profile, or replace it. A secret is named by where it is: sasl.password.file, .env or .keyring.

    Example: logflume profile add prod --bootstrap kafka:9093 --set security.protocol=SASL_SSL --set sasl.mechanism=SCRAM-SHA-512
    --set sasl.username=alice --set sasl.password.file=/run/secrets/alice
    """
    from logflume.log.client import Profile, check_profile_name, config_path
    from logflume.log.client.security import SECRETS, SOURCES

    check_profile_name(name)
    found: dict[str, str] = {}
    for pair in settings or []:
        key, equals, value = pair.partition("=")
        if not equals or key in found:
            raise InvalidInput(f"--set expects NAME=VALUE, each name once, found {key[:100]!r}")
        if key in SECRETS:
            sources = ", ".join(f"{key}.{source}" for source in SOURCES)
            raise InvalidInput(f"{key} would stand in the shell's history and the process list; name where it is kept: {sources}")
        found[key] = value
    profile = Profile(name, bootstrap, found)
    profile.security()
    put_profile(profile)
    print_object({"profile": name, "bootstrap": bootstrap, "file": str(config_path())}, as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the profiles, and which is in use.

    Example: logflume profile list
    """
    from logflume.log.client import config_path, load_profiles

    profiles = load_profiles(config_path())
    rows = [
        (each.name, each.name == profiles.default, each.bootstrap, each.security().protocol.upper(), each.security().username)
        for each in profiles.by_name.values()
    ]
    print_rows(("profile", "in use", "bootstrap", "protocol", "user"), rows, as_json=as_json)


@app.command()
def use(name: Name, as_json: Json = False) -> None:
    """Make a profile the one that counts where nothing else says where the log is.

    Example: logflume profile use prod
    """
    from logflume.log.client import Profiles, config_path, load_profiles, save_profiles

    profiles = load_profiles(config_path())
    profiles.get(name)
    save_profiles(config_path(), Profiles(profiles.by_name, name))
    print_done(f"in use: {name}", as_json=as_json, profile=name)


@app.command("test")
def check(name: Name, as_json: Json = False) -> None:
    """Connect and log in as a profile says, and tell what there is.

    Example: logflume profile test prod
    """
    from logflume.log import connect
    from logflume.log.client import config_path, load_profiles

    profiles = load_profiles(config_path())
    if name not in profiles.by_name:
        raise UnknownName("profile", name, profiles.by_name)
    with connect(f"profile:{name}") as log:
        print_object({"profile": name, "topics": len(log.admin().list_topics())}, as_json=as_json)


def put_profile(profile: Profile) -> None:
    """Add a profile to the file, or replace it there. Raises InvalidInput."""
    from logflume.log.client import Profiles, config_path, load_profiles, save_profiles

    profiles = load_profiles(config_path())
    save_profiles(config_path(), Profiles({**profiles.by_name, profile.name: profile}, profiles.default))
