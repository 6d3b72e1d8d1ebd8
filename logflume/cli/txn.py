"""`logflume txn`: transactions: list, describe and abort them, also those that hang."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done, print_object, print_rows, seconds
from logflume.log import Admin, InvalidInput, TopicPartition
from logflume.log.operations import (
    abort_hanging,
    describe_transaction,
    fence,
    hanging_transactions,
    list_transactions,
    open_transactions,
)

app = make_app("List, describe and abort transactions.\n\nExample: logflume txn list --state Ongoing --data ./data")

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="Only in this topic; may be repeated.")]


@app.command("list")
def list_(
    state: Annotated[list[str] | None, typer.Option(help="Only in this state, as Ongoing; may be repeated.")] = None,
    longer_than_s: Annotated[
        float | None, typer.Option(min=0, callback=seconds, help="Only transactions open for longer.")
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List transactional ids with their producer and state.

    Example: logflume txn list --longer-than-s 60 --data ./data
    """
    with open_log(data, bootstrap) as log:
        duration_ms = -1 if longer_than_s is None else int(longer_than_s * 1000)
        found = list_transactions(log.admin(), states=state or (), longer_than_ms=duration_ms)
    rows = [(each.transactional_id, each.producer_id, each.state) for each in found]
    print_rows(("transactional_id", "producer_id", "state"), rows, as_json=as_json)


@app.command()
def describe(transactional_id: str, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Show the state of a transactional id, and what its open transaction has written to.

    Example: logflume txn describe payments --data ./data
    """
    with open_log(data, bootstrap) as log:
        found = describe_transaction(log.admin(), transactional_id)
    fields = {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "open_for_s": round(max(0.0, time.time() - found.start_ms / 1000), 3) if found.start_ms >= 0 else None,
        "partitions": [f"{topic}-{index}" for topic, index in found.partitions],
    }
    print_object(fields, as_json=as_json)


@app.command()
def hanging(topic: Topics = None, data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """List transactions that are open in a partition although no coordinator knows them: they hide all that follows.

    Example: logflume txn hanging --topic flights --data ./data
    """
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        found = hanging_transactions(admin, partitions_of(admin, topic or []))
    now_s = time.time()
    rows = [
        (
            *each.partition,
            each.start_offset,
            each.producer_id,
            each.producer_epoch,
            round(now_s - each.last_timestamp_ms / 1000, 1),
        )
        for each in found
    ]
    print_rows(("topic", "partition", "start_offset", "producer_id", "producer_epoch", "quiet_for_s"), rows, as_json=as_json)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="Abort what this id has open, and refuse its producer from now on.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Or: the topic where a transaction hangs,")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="its partition,")] = None,
    start_offset: Annotated[int | None, typer.Option(min=0, help="and the transaction's first offset.")] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Abort a transaction: by its transactional id, or one that hangs by its place.

    Example: logflume txn abort --topic flights --partition 0 --start-offset 42 --data ./data
    """
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (topic is None) or (topic is not None and None in place):
        raise InvalidInput("give either a transactional id, or --topic, --partition and --start-offset")
    with open_log(data, bootstrap) as log:
        admin = log.admin()
        if transactional_id is not None:
            fence(admin, transactional_id)
            text = f"aborted what {transactional_id} had open; its producer is fenced"
            print_done(text, as_json=as_json, aborted=transactional_id)
            return
        assert topic is not None
        assert partition is not None
        opened = open_transactions(admin, [TopicPartition(topic, partition)])
        found = [each for each in opened if each.start_offset == start_offset]
        if not found:
            offsets = ", ".join(str(each.start_offset) for each in opened) or "none"
            raise InvalidInput(
                f"no transaction is open in {topic}-{partition} from offset {start_offset} on; open ones begin at: {offsets}"
            )
        abort_hanging(admin, found[0])
    producer = found[0].producer_id
    text = f"aborted the transaction of producer {producer} in {topic}-{partition} from offset {start_offset} on"
    print_done(text, as_json=as_json, producer_id=producer, topic=topic, partition=partition, start_offset=start_offset)


def partitions_of(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions of these topics, of all topics if none is named."""
    names = topics or admin.list_topics(include_internal=True)
    described = admin.describe_topics(names) if names else {}
    return [TopicPartition(name, index) for name in names for index in range(described[name].partitions)]
