"""`logflume acl`: who may do what: create, list and delete access rules; what one may do oneself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_rows
from logflume.log import InvalidInput

if TYPE_CHECKING:
    from logflume.log.access import AclRule

app = make_app(
    "Create, list and delete access rules (ACLs). The broker must run with an authorizer (authorizer.class.name).\n\n"
    "Example: logflume acl create --principal User:alice --operation read --topic flights --group reports --data ./data"
)

COLUMNS = ("permission", "principal", "host", "operation", "resource", "pattern", "name")
MINE_COLUMNS = ("principal", "login", "resource", "name", "operations")
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic, * for all; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group, * for all; may be repeated.")]
Txns = Annotated[list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id; may be repeated.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes.")]


@app.command()
def create(
    principal: Annotated[str, typer.Option(metavar="TYPE:NAME", help="For whom, as User:alice; User:* for everybody.")],
    operation: Annotated[
        list[str], typer.Option(metavar="NAME", help="read, write, create, describe, all ...; may be repeated.")
    ],
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Txns = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead of allow; a denial wins.")] = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="From where: an address, a range as 10.0.0.0/8, * for all.")] = "*",
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Allow or deny operations on topics, groups, transactional ids or the cluster.

    Example: logflume acl create --principal User:etl --operation write --topic sales- --prefixed --data ./data
    """
    from logflume.log.access import AclRule, create_acls

    pattern = "prefixed" if prefixed else "literal"
    rules = [
        AclRule(
            resource, name, principal, each, pattern if resource != "cluster" else "literal", "deny" if deny else "allow", host
        )
        for resource, name in _resources(topic, group, transactional_id, is_cluster=cluster)
        for each in operation
    ]
    if not rules:
        raise InvalidInput("say what for: --topic, --group, --transactional-id or --cluster")
    with open_log(data, bootstrap) as log:
        create_acls(log.admin(), rules)
    print_rows(COLUMNS, map(_row, rules), as_json=as_json)


@app.command("list")
def list_(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Txns = None,
    cluster: Cluster = False,
    principal: Annotated[str | None, typer.Option(metavar="TYPE:NAME", help="Only rules for this principal.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List access rules: all, or those that have a say about what is named, prefixes and * included.

    Example: logflume acl list --topic flights --data ./data
    """
    from logflume.log.access import AclSelection, list_acls

    resources = _resources(topic, group, transactional_id, is_cluster=cluster)
    selections = [AclSelection(resource, name, principal, pattern="match") for resource, name in resources]
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        found = [rule for each in selections or [AclSelection(principal=principal)] for rule in list_acls(admin, each)]
    print_rows(COLUMNS, map(_row, dict.fromkeys(found)), as_json=as_json)


@app.command()
def delete(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Txns = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    principal: Annotated[str | None, typer.Option(metavar="TYPE:NAME", help="Only rules for this principal.")] = None,
    operation: Annotated[str | None, typer.Option(metavar="NAME", help="Only rules for this operation.")] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Only rules for this host.")] = None,
    every: Annotated[bool, typer.Option("--every", help="Every rule that there is.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, delete nothing.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Delete access rules that are written for exactly what is named; prints them.

    Example: logflume acl delete --principal User:alice --topic flights --dry-run --data ./data
    """
    from logflume.log.access import ANY, AclSelection, delete_acls, list_acls

    resources = _resources(topic, group, transactional_id, is_cluster=cluster)
    pattern = "prefixed" if prefixed else "literal"
    selections = [AclSelection(resource, name, principal, operation or ANY, pattern, host=host) for resource, name in resources]
    if not selections:
        if principal is None and operation is None and host is None and not every:
            raise InvalidInput("say which: --topic, --principal and so on, or --every")
        selections = [AclSelection(principal=principal, operation=operation or ANY, host=host)]
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        act = list_acls if dry_run else delete_acls
        gone = [rule for each in selections for rule in act(admin, each)]
    print_rows(COLUMNS, map(_row, gone), as_json=as_json)


@app.command()
def mine(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated. Without: all that one may see.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group; may be repeated.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show who one is at the broker and what one may do there: to the cluster, topics and groups. It takes no right.

    Without --topic: all topics that one may see. What is hidden from one shows none, as what is not there; the cluster's are told
    to those who may describe it.

    Example: logflume acl mine --group reports --profile alice
    """
    from logflume.log.own_rights import login_of, own_rights

    with open_log(data, bootstrap) as log:
        mechanism, principal = login_of(log.security)
        rights = own_rights(log.admin(), topics=topic, groups=group or ())
    if not as_json:
        print(f"principal: {principal} (login: {mechanism})", file=sys.stderr)
    rows = [(principal, mechanism, each.resource, each.name, " ".join(each.operations) or "none") for each in rights]
    first = 0 if as_json else 2
    print_rows(MINE_COLUMNS[first:], [row[first:] for row in rows], as_json=as_json)


def _resources(
    topics: list[str] | None, groups: list[str] | None, transactional_ids: list[str] | None, *, is_cluster: bool
) -> list[tuple[str, str]]:
    """Return (resource type, name) of everything that the options name."""
    from logflume.log.access import CLUSTER

    named = (("topic", topics), ("group", groups), ("transactional_id", transactional_ids))
    found = [(resource, name) for resource, names in named for name in names or ()]
    return [*found, ("cluster", CLUSTER)] if is_cluster else found


def _row(rule: AclRule) -> tuple[str, ...]:
    return (rule.permission, rule.principal, rule.host, rule.operation, rule.resource, rule.pattern, rule.name)
