"""`logflume group`: list, describe and reset consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done, print_object, print_rows
from logflume.cli.places import PLACES, offsets_at
from logflume.log import Admin, ErrorCode, InvalidInput, KafkaError, OffsetAndMetadata, TopicPartition
from logflume.log.operations import delete_group_offsets, set_share_group_offsets, share_group_offsets

app = make_app(
    "List, describe, reset and delete consumer groups.\n\n"
    "Example: logflume group reset reports --topic flights --to beginning --dry-run --data ./data"
)


@app.command("list")
def list_groups(data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """List groups with their state and number of members.

    Example: logflume group list --json --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        rows = []
        for group_id in sorted(admin.list_groups()):
            group = admin.describe_group(group_id)
            rows.append((group_id, group.state, len(group.members)))
    print_rows(("group", "state", "members"), rows, as_json=as_json)


@app.command()
def describe(group_id: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Show the members of a group and its committed offset, end offset and lag in each partition.

    Of a share group the offset is that of the first record it is not done with.

    Example: logflume group describe reports --bootstrap 127.0.0.1:9092
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        group = admin.describe_group(group_id)
        committed = {tp: (at.offset, None) for tp, at in admin.group_offsets(group_id).items()} or _share_offsets(admin, group_id)
        ends = admin.end_offsets(committed)
    owner = {tp: member.member_id for member in group.members for tp in member.assignment}
    rows = [
        (tp.topic, tp.partition, offset, ends[tp], ends[tp] - offset if lag is None else lag, owner.get(tp))
        for tp, (offset, lag) in sorted(committed.items())
    ]
    columns = ("topic", "partition", "committed", "end", "lag", "member")
    if as_json:
        offsets = [dict(zip(columns, row, strict=True)) for row in rows]
        members = [{"member": m.member_id, "instance": m.instance_id, "client": m.client_id} for m in group.members]
        print_object({"group": group_id, "state": group.state, "members": members, "offsets": offsets}, as_json=True)
        return
    print_object({"group": group_id, "state": group.state, "members": len(group.members)}, as_json=False)
    print()
    print_rows(columns, rows, as_json=False)


def _share_offsets(admin: Admin, group_id: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return start offset and lag by partition; nothing for a group that is not a share group."""
    try:
        found = share_group_offsets(admin, group_id)
    except KafkaError as error:
        if error.error is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {tp: (at.start_offset, at.lag_records) for tp, at in found.items()}


@app.command()
def reset(
    group_id: str,
    topic: Annotated[str, typer.Option(help="The topic whose offsets are set.")],
    to: Annotated[str, typer.Option(metavar="WHERE", help=f"{PLACES}.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, change nothing.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Set the committed offsets of a group that has no members.

    Example: logflume group reset reports --topic flights --to beginning --dry-run --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        count = admin.describe_topics([topic])[topic].partitions
        partitions = [TopicPartition(topic, p) for p in range(count)]
        starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
        target = offsets_at(to, starts, ends, admin, option="--to")
        for tp, offset in target.items():
            if not starts[tp] <= offset <= ends[tp]:
                raise InvalidInput(f"partition {tp.partition} of {topic} holds {starts[tp]} to {ends[tp]}, not {offset}")
        before = {tp: at.offset for tp, at in admin.group_offsets(group_id).items()}
        share = {} if before else _share_offsets(admin, group_id)
        before |= {tp: offset for tp, (offset, _) in share.items()}
        rows = [(tp.partition, before.get(tp), target[tp]) for tp in partitions]
        if share and not dry_run:
            set_share_group_offsets(admin, group_id, target)
        elif not dry_run:
            admin.set_group_offsets(group_id, {tp: OffsetAndMetadata(offset) for tp, offset in target.items()})
    print_rows(("partition", "before", "would be" if dry_run else "after"), rows, as_json=as_json)


@app.command("delete-offsets")
def delete_offsets(
    group_id: str,
    topic: Annotated[str, typer.Option(help="The topic whose offsets are forgotten.")],
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only of this partition; may be repeated.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Forget a group's committed offsets of a topic that none of its members reads.

    Example: logflume group delete-offsets reports --topic flights --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        committed = sorted(tp for tp in admin.group_offsets(group_id) if tp.topic == topic)
        wanted = [TopicPartition(topic, index) for index in partition] if partition else committed
        missing = [tp for tp in wanted if tp not in committed]
        if missing or not wanted:
            found = ", ".join(str(tp.partition) for tp in committed) or "none"
            raise InvalidInput(f"group {group_id!r} has no such offsets; those of {topic} are of partitions: {found}")
        delete_group_offsets(admin, group_id, wanted)
    text = f"deleted offsets of {len(wanted)} partition{'s' if len(wanted) > 1 else ''} of {topic} of group {group_id}"
    print_done(text, as_json=as_json, group=group_id, topic=topic, partitions=[tp.partition for tp in wanted])


@app.command()
def delete(group_id: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Delete a group that has no members, with its committed offsets.

    Example: logflume group delete reports --data ./data
    """
    with open_log(data, bootstrap) as log:
        log.admin().delete_group(group_id)
    print_done(f"deleted group {group_id}", as_json=as_json, deleted=group_id)
