"""`logflume archive`: topics into Parquet files with their offsets, from where the files end to what is committed now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, where
from logflume.log import connect_as_owner

if TYPE_CHECKING:
    from logflume.streams.spark.archives import ArchiveFile

app = make_app("")


@app.command()
def archive(
    topics: Annotated[list[str], typer.Argument(help="What to copy.", metavar="TOPIC...")],
    to: Annotated[str, typer.Option(metavar="PATH", help="A directory, or s3://BUCKET/FOLDER.")],
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Copy what is committed now and not in the archive yet; run it again any time, more often than retention takes records away.

    Example: logflume archive flights --to ./archive
    """
    from logflume.streams.spark import archive_topic

    def tell(file: ArchiveFile, records: int) -> None:
        held = file.held
        if as_json:
            fields = {"topic": held.topic, "partition": held.partition, "start": held.start, "end": held.end}
            print(json.dumps(fields | {"records": records, "file": file.path}))
        else:
            print(f"{held.topic}-{held.partition}  offsets {held.start:,} to {held.end:,}  {records:,} records  {file.path}")

    with connect_as_owner(where(data, bootstrap)) as log:
        for topic in topics:
            archive_topic(log, topic, to, on_file=tell)
