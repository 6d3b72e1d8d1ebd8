"""`logflume archive`: topics into Parquet files with their offsets, from where the files end to what is committed, once or on."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, print_rows, where
from logflume.cli.stopping import stop_on_signals
from logflume.log import InvalidInput

if TYPE_CHECKING:
    from logflume.log import Log
    from logflume.streams.spark import OffsetRange
    from logflume.streams.spark.archives import ArchiveFile

app = make_app("")


@app.command()
def archive(
    topics: Annotated[list[str], typer.Argument(help="What to copy.", metavar="TOPIC...")],
    to: Annotated[str, typer.Option(metavar="PATH", help="A directory, or s3://BUCKET/FOLDER.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C: the log's retention may then be short.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="With --follow: how often files are added.")] = 60.0,
    check: Annotated[bool, typer.Option("--check", help="Copy nothing; say whether archive and log are one history.")] = False,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Copy what is committed now and not in the archive yet; run it again any time, more often than retention takes records away.

    Example: logflume archive flights --to ./archive
    """
    if not 0 < every <= threading.TIMEOUT_MAX:
        raise InvalidInput(f"--every expects a number of seconds above 0, found {every:g}")
    if follow and check:
        raise InvalidInput("--follow writes and --check only looks: give one of them")
    from logflume.log import connect_as_owner

    with connect_as_owner(where(data, bootstrap)) as log:
        if check:
            show_check(log, topics, to, as_json)
        elif follow:
            go_on(log, topics, to, every, teller(as_json))
        else:
            from logflume.streams.spark import archive_topic

            for topic in topics:
                archive_topic(log, topic, to, on_file=teller(as_json))


def teller(as_json: bool) -> Callable[[ArchiveFile, int], None]:
    """Return what tells of a new file."""

    def tell(file: ArchiveFile, records: int) -> None:
        held = file.held
        if as_json:
            fields = {"topic": held.topic, "partition": held.partition, "start": held.start, "end": held.end}
            print(json.dumps(fields | {"records": records, "file": file.path}), flush=True)
        else:
            offsets = f"offsets {held.start:,} to {held.end:,}"
            print(f"{held.topic}-{held.partition}  {offsets}  {records:,} records  {file.path}", flush=True)

    return tell


def go_on(log: Log, topics: list[str], to: str, every_s: float, tell: Callable[[ArchiveFile, int], None]) -> None:
    """Archive until a signal; what is being written then is finished."""
    from logflume.log.children import end_with_parent
    from logflume.streams.spark import keep_archiving

    end_with_parent(signal.SIGTERM)
    keep_archiving(
        log,
        topics,
        to,
        every_s=every_s,
        stop=stop_on_signals(),
        on_file=tell,
        on_problem=lambda error: print(f"archive: {error}; trying again", file=sys.stderr, flush=True),
    )


def show_check(log: Log, topics: list[str], to: str, as_json: bool) -> None:
    """Print where archive and log meet; exit code 1 where they do not."""
    from logflume.streams.spark import check_archive

    meetings = [meeting for topic in topics for meeting in check_archive(log, topic, to)]
    rows = [
        (each.logged.topic, each.logged.partition, span(each.archived), span(each.logged), each.problem or "one history")
        for each in meetings
    ]
    print_rows(("topic", "partition", "archive", "log", "together"), rows, as_json=as_json)
    if any(each.problem for each in meetings):
        raise typer.Exit(1)


def span(held: OffsetRange | None) -> str:
    """Return offsets in words."""
    return "nothing" if held is None or not len(held) else f"[{held.start}, {held.end})"
