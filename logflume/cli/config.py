"""`logflume config`: settings of brokers, topics, groups and client-metrics subscriptions, each with its source; change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done, print_object, print_rows
from logflume.log import InvalidInput
from logflume.log.operations import CLUSTER, DEFAULT_SOURCE, ConfigEntry, alter_configs, broker_ids, describe_configs

app = make_app(
    "Show and change settings of brokers, topics and groups, each with its source.\n\n"
    "Example: logflume config show --topic flights --all --data ./data\n\n"
    "Where a value comes from, first to last: topic or group, dynamic broker, dynamic default, static broker, default."
)

Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="The settings of a topic.")]
Group = Annotated[str | None, typer.Option("--group", metavar="ID", help="The settings of a group.")]
Broker = Annotated[
    str | None, typer.Option("--broker", metavar="ID", help=f"The settings of a broker; {CLUSTER}: the defaults of all brokers.")
]
ClientMetrics = Annotated[str | None, typer.Option("--client-metrics", metavar="NAME", help="Those of a metrics subscription.")]


@app.command()
def show(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these settings.")] = None,
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    client_metrics: ClientMetrics = None,
    all_: Annotated[bool, typer.Option("--all", help="Those with their default value too.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show settings with value and source: those that differ from the default, or all. Without a resource: the broker's.

    Example: logflume config show num.partitions log.retention.ms --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        resource, name = chosen(topic, group, broker, client_metrics) or ("broker", str(broker_ids(admin)[0]))
        entries = describe_configs(admin, resource, name, names=names or None)
    check_found(resource, entries, names or ())
    shown = [entry for entry in entries if all_ or names or entry.source != DEFAULT_SOURCE]
    rows = [(entry.name, value_of(entry), entry.source) for entry in shown]
    print_rows(("name", "value", "source"), rows, as_json=as_json)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting.")],
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    client_metrics: ClientMetrics = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Show all there is to know of one setting: type, meaning, and every place where it was looked up.

    Example: logflume config describe retention.ms --topic flights --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        resource, of = chosen(topic, group, broker, client_metrics) or ("broker", str(broker_ids(admin)[0]))
        entries = describe_configs(admin, resource, of, names=[name])
    check_found(resource, entries, [name])
    entry = entries[0]
    fields = {
        "name": entry.name,
        "value": value_of(entry),
        "source": entry.source,
        "type": entry.type,
        "change": "at the next start" if entry.is_read_only else "while the broker runs",
        "meaning": entry.documentation,
    }
    if as_json:
        synonyms = [{"name": n, "value": v, "source": s} for n, v, s in entry.synonyms]
        print_object({**fields, "synonyms": synonyms}, as_json=True)
        return
    print_object(fields, as_json=False)
    if entry.synonyms:
        print()
        print_rows(("looked up as", "value", "source"), entry.synonyms, as_json=False)


@app.command("set")
def set_configs(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings; the others stay.")],
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    client_metrics: ClientMetrics = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Set settings while the broker runs; all of them or none.

    Example: logflume config set retention.ms=86400000 cleanup.policy=delete --topic flights --data ./data
    """
    resource, name = required(topic, group, broker, client_metrics)
    changes: dict[str, str | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(f"expected NAME=VALUE, found {pair!r}; for example retention.ms=86400000")
        changes[key.strip()] = value.strip()
    with open_log(data, bootstrap) as log:
        alter_configs(log.admin(), resource, name, changes, is_dry_run=dry_run)
    text = f"{'would set' if dry_run else 'set'} {', '.join(changes)} of {resource} {name}"
    print_done(text, as_json=as_json, resource=resource, name=name, set=changes, is_dry_run=dry_run)


@app.command()
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Settings.")],
    topic: Topic = None,
    group: Group = None,
    broker: Broker = None,
    client_metrics: ClientMetrics = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Take back what was set, so that what lies behind it counts again.

    Example: logflume config unset retention.ms --topic flights --data ./data
    """
    resource, name = required(topic, group, broker, client_metrics)
    with open_log(data, bootstrap) as log:
        alter_configs(log.admin(), resource, name, dict.fromkeys(names), is_dry_run=dry_run)
    text = f"{'would unset' if dry_run else 'unset'} {', '.join(names)} of {resource} {name}"
    print_done(text, as_json=as_json, resource=resource, name=name, unset=names, is_dry_run=dry_run)


def chosen(topic: str | None, group: str | None, broker: str | None, client_metrics: str | None) -> tuple[str, str] | None:
    """Return (resource, name) of the one option that is given, None if none is."""
    options = {"topic": topic, "group": group, "broker": broker, "client-metrics": client_metrics}
    given = [(resource, name) for resource, name in options.items() if name is not None]
    if len(given) > 1:
        raise InvalidInput(f"give one of --topic, --group, --broker and --client-metrics, found {len(given)}")
    return given[0] if given else None


def required(topic: str | None, group: str | None, broker: str | None, client_metrics: str | None) -> tuple[str, str]:
    """Return (resource, name); refused without one, so that nobody changes a broker by leaving out a word."""
    found = chosen(topic, group, broker, client_metrics)
    if found is None:
        raise InvalidInput(
            f"say whose settings: --topic NAME, --group ID, --broker ID, --broker {CLUSTER} or --client-metrics NAME"
        )
    return found


def check_found(resource: str, entries: Sequence[ConfigEntry], names: Sequence[str]) -> None:
    """Refuse names that the broker does not know."""
    missing = [name for name in names if name not in {entry.name for entry in entries}]
    if missing:
        raise InvalidInput(
            f"{resource} has no setting {', '.join(missing)}; `logflume config show --all` lists what there is, "
            "with --topic NAME those of a topic"
        )


def value_of(entry: ConfigEntry) -> str | None:
    return "****" if entry.is_sensitive else entry.value
