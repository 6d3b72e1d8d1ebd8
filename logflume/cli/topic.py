"""`logflume topic`: create, list, describe and delete topics."""

from __future__ import annotations

from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done, print_object, print_rows
from logflume.log import InvalidInput, TopicPartition, is_hidden_topic

app = make_app(
    "Create, list, describe, change and delete topics.\n\nExample: logflume topic create flights --partitions 4 --data ./data"
)


def parse_configs(pairs: list[str]) -> dict[str, str]:
    """Return `name=value` texts as a dict.

    >>> parse_configs(["cleanup.policy=compact"])
    {'cleanup.policy': 'compact'}
    """
    configs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--config expects NAME=VALUE, found {pair!r}; for example --config cleanup.policy=compact")
        configs[name.strip()] = value.strip()
    return configs


@app.command()
def create(
    name: str,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Number of partitions; default: the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[int, typer.Option(help="Copies of each partition; -1: the broker's default.")] = -1,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic config; may be repeated.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Create a topic.

    Example: logflume topic create flights --partitions 4 --config retention.ms=-1 --data ./data
    """
    configs = parse_configs(config or [])
    with open_log(data, bootstrap, may_create=True) as log:
        made = log.admin().create_topic(name, partitions=partitions or -1, replication_factor=replication_factor, configs=configs)
    count = partitions if made is None else made.partitions
    known = "" if count is None else f" with {count} partition{'' if count == 1 else 's'}"
    text = f"created topic {name}{known}"
    print_done(text, as_json=as_json, created=name, partitions=count, configs=configs)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List topics with their partitions and number of offsets; those that applications keep for themselves only when asked for.

    Example: logflume topic list --json --bootstrap 127.0.0.1:9092
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        names = sorted(t for t in admin.list_topics(include_internal=internal) if internal or not is_hidden_topic(t))
        described = admin.describe_topics(names) if names else {}
        partitions = [TopicPartition(n, p) for n in names for p in range(described[n].partitions)]
        starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
        rows = []
        for name in names:
            own = [TopicPartition(name, p) for p in range(described[name].partitions)]
            rows.append((name, len(own), sum(ends[tp] - starts[tp] for tp in own)))
    print_rows(("topic", "partitions", "offsets"), rows, as_json=as_json)


@app.command()
def describe(name: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Show a topic's id, configs that differ from the defaults, and the offsets of each partition.

    Example: logflume topic describe flights --bootstrap 127.0.0.1:9092
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        topic, configs = admin.describe_topics([name])[name], admin.changed_topic_configs(name)
        partitions = [TopicPartition(name, p) for p in range(topic.partitions)]
        starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    fields = {"topic": topic.name, "id": topic.topic_id, "partitions": topic.partitions, "configs": configs}
    if as_json:
        offsets = [{"partition": tp.partition, "start": starts[tp], "end": ends[tp]} for tp in partitions]
        print_object({**fields, "offsets": offsets}, as_json=True)
        return
    print_object(fields, as_json=False)
    print()
    print_rows(("partition", "start", "end"), [(tp.partition, starts[tp], ends[tp]) for tp in partitions], as_json=False)


@app.command("add-partitions")
def add_partitions(
    name: str,
    total: Annotated[int, typer.Option(min=1, help="Number of partitions there are to be.")],
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Give a topic more partitions. Keys may go to other partitions from then on.

    Example: logflume topic add-partitions flights --total 8 --data ./data
    """
    with open_log(data, bootstrap) as log:
        log.admin().create_partitions(name, total)
    print_done(f"topic {name} has {total} partitions", as_json=as_json, topic=name, partitions=total)


@app.command()
def alter(
    name: str,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a config; may be repeated.")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Back to what lies behind; may be repeated.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Change configs of a topic; all of them or none. `logflume config show --topic NAME` shows them.

    Example: logflume topic alter flights --config retention.ms=86400000 --unset cleanup.policy --data ./data
    """
    changes: dict[str, str | None] = {**parse_configs(config or []), **dict.fromkeys(unset or [])}
    if not changes:
        raise InvalidInput("nothing to change: give --config NAME=VALUE or --unset NAME")
    with open_log(data, bootstrap) as log:
        log.admin().alter_topic_configs(name, changes)
    print_done(f"changed {', '.join(changes)} of topic {name}", as_json=as_json, topic=name, changed=changes)


@app.command("delete-records")
def delete_records(
    name: str,
    before: Annotated[list[str], typer.Option(metavar="PARTITION:OFFSET", help="Drop what is before; may be repeated.")],
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Drop the records of partitions before an offset (-1: all).

    Example: logflume topic delete-records flights --before 0:1000 --before 1:-1 --data ./data
    """
    offsets = {}
    for text in before:
        partition, colon, offset = text.partition(":")
        if not colon or not partition.isdecimal() or not offset.removeprefix("-").isdecimal():
            raise InvalidInput(f"--before expects PARTITION:OFFSET, found {text!r}; for example 0:1000")
        offsets[TopicPartition(name, int(partition))] = int(offset)
    with open_log(data, bootstrap) as log:
        log.admin().delete_records(offsets)
    text = f"deleted records of {', '.join(f'{name}-{tp.partition}' for tp in offsets)}"
    print_done(text, as_json=as_json, topic=name, before={tp.partition: offset for tp, offset in offsets.items()})


@app.command()
def delete(name: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Delete a topic and all its records.

    Example: logflume topic delete flights --data ./data
    """
    with open_log(data, bootstrap) as log:
        log.admin().delete_topic(name)
    print_done(f"deleted topic {name}", as_json=as_json, deleted=name)
