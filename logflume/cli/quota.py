"""`logflume quota`: how much users, clients and addresses may use: set, list and remove limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_rows
from logflume.log import InvalidInput

if TYPE_CHECKING:
    from logflume.log.access import QuotaEntry

app = make_app(
    "Set, list and remove quotas: producer_byte_rate, consumer_byte_rate (bytes/s), request_percentage,\n"
    "controller_mutation_rate (partitions/s) of users and client ids; connection_creation_rate (1/s) of addresses.\n\n"
    "Example: logflume quota set producer_byte_rate=1000000 --user alice --data ./data"
)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user; ANONYMOUS for clients that do not log in.")]
Client = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="A client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Every user without a quota of its own.")]
DefaultClient = Annotated[bool, typer.Option("--default-client-id", help="Every client id without a quota of its own.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Every address without a quota of its own.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")]
DEFAULT = "<default>"


@app.command("set")
def set_(
    quotas: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Quotas with their limits.")],
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    default_ip: DefaultIp = False,
    dry_run: DryRun = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address; they apply at once.

    Example: logflume quota set consumer_byte_rate=5e6 request_percentage=50 --default-user --client-id report --data ./data
    """
    from logflume.log.access import QuotaEntry, set_quotas

    changes = dict(map(parse_quota, quotas))
    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    if not entity:
        raise InvalidInput("say whose: --user, --client-id, --ip or a --default-... of them")
    with open_log(data, bootstrap) as log:
        set_quotas(log.admin(), entity, changes, is_dry_run=dry_run)
    _print([QuotaEntry(entity, changes)], as_json=as_json)


@app.command("list")
def list_(
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    default_ip: DefaultIp = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List quotas: all, or those that are set for what is named.

    Example: logflume quota list --user alice --data ./data
    """
    from logflume.log.access import list_quotas

    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    with open_log(data, bootstrap) as log:
        found = list_quotas(log.admin(), entity)
    _print(found, as_json=as_json)


@app.command()
def remove(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Quotas; without any, all that are set.")] = None,
    user: User = None,
    client_id: Client = None,
    ip: Ip = None,
    default_user: DefaultUser = False,
    default_client_id: DefaultClient = False,
    default_ip: DefaultIp = False,
    dry_run: DryRun = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Remove quotas of exactly the entity that is named; prints them.

    Example: logflume quota remove producer_byte_rate --user alice --data ./data
    """
    from logflume.log.access import QuotaEntry, list_quotas, set_quotas

    entity = _entity(user, client_id, ip, default_user, default_client_id, default_ip)
    if not entity:
        raise InvalidInput("say whose: --user, --client-id, --ip or a --default-... of them")
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        own = next((dict(each.quotas) for each in list_quotas(admin, entity) if each.entity == entity), {})
        missing = [name for name in names or () if name not in own]
        if missing or not own:
            raise InvalidInput(f"{_text(entity)} has no quota {missing[0]!r}" if missing else f"{_text(entity)} has no quotas")
        gone = {name: own[name] for name in names or own}
        set_quotas(admin, entity, dict.fromkeys(gone), is_dry_run=dry_run)
    _print([QuotaEntry(entity, gone)], as_json=as_json)


def parse_quota(text: str) -> tuple[str, float]:
    """Return name and limit of `NAME=VALUE`. Raises InvalidInput.

    >>> parse_quota("producer_byte_rate=1e6")
    ('producer_byte_rate', 1000000.0)
    """
    name, equals, value = text.partition("=")
    try:
        if not (name and equals):
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise InvalidInput(f"expected NAME=NUMBER, found {text!r}; for example producer_byte_rate=1000000") from None


def _entity(
    user: str | None, client_id: str | None, ip: str | None, any_user: bool, any_client_id: bool, any_ip: bool
) -> dict[str, str | None]:
    """Return the parts that are named, None for a default."""
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (("user", user, any_user), ("client-id", client_id, any_client_id), ("ip", ip, any_ip)):
        if name is not None and is_default:
            raise InvalidInput(f"give either --{kind} or --default-{kind}, not both")
        if name is not None or is_default:
            entity[kind] = name
    return entity


def _text(entity: dict[str, str | None]) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity.items())


def _print(entries: list[QuotaEntry], *, as_json: bool) -> None:
    kinds = ("user", "client-id", "ip")
    rows = [
        (*((entry.entity[kind] or DEFAULT) if kind in entry.entity else None for kind in kinds), name, value)
        for entry in entries
        for name, value in entry.quotas.items()
    ]
    print_rows((*kinds, "quota", "limit"), rows, as_json=as_json)
