"""The options of the file source: data only."""

from __future__ import annotations

from collections.abc import Iterable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from logflume.connect.config import Config
from logflume.connect.errors import Problem
from logflume.connect.spec import Option, OptionType, Spec
from logflume.log import near_matches

from .event_time import AUTO

FAIL, RESTART = "fail", "restart"
SORT_MAX_BYTES = 256 << 20


def _one_character(value: str) -> str | None:
    return (
        None if len(value) == 1 and value.isascii() and value not in '"\r\n' else f"expected one ASCII character, found {value!r}"
    )


def _known_zone(value: str) -> str | None:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"expected an IANA time zone such as America/New_York, found {value!r}"
    return None


def _columns_exist(config: Config) -> Iterable[Problem]:
    declared = {column.name for column in config.columns("value.columns")}
    for option in ("key.columns", "timestamp.columns", "sort.by"):
        for name in config.items(option) if declared else ():
            if name not in declared:
                near = near_matches(name, declared)
                meant = f"did you mean {near[0]!r}?" if near else "add it there with its type, or leave value.columns out"
                yield Problem(option, f"column {name!r} is not in value.columns ({', '.join(sorted(declared))}); {meant}")


def _no_conflict(config: Config) -> Iterable[Problem]:
    if config.number("replay.speed") > 0 and not config.items("timestamp.columns"):
        yield Problem("replay.speed", "needs timestamp.columns: event time sets the pace")
    if config.flag("timestamp.order.check") and not config.items("timestamp.columns"):
        yield Problem("timestamp.order.check", "needs timestamp.columns")
    if config.integer("timestamp.fixed.ms") >= 0 and config.items("timestamp.columns"):
        yield Problem("timestamp.fixed.ms", "excludes timestamp.columns: the event time is either fixed or in columns")
    if config.items("sort.by") and config.flag("follow"):
        yield Problem("sort.by", "a file that is followed cannot be sorted; set follow = false")
    if config.flag("follow") and config.text("format") == "parquet":
        yield Problem("follow", "a Parquet file does not grow; set follow = false and name new files by a pattern")
    if not config.flag("csv.header") and not config.columns("value.columns"):
        yield Problem("value.columns", "required with csv.header = false: it names the columns of the file")


FILE_SPEC = Spec(
    options=(
        Option(
            name="file",
            type=OptionType.STRING,
            doc="Path of the file, or a pattern (`data/*.csv`); files are read in order of name.",
        ),
        Option(
            name="format",
            type=OptionType.STRING,
            default="auto",
            allowed=("auto", "csv", "jsonl", "parquet"),
            doc="Format; `auto` goes by the ending (.csv, .tsv, .jsonl, .ndjson, .json, .parquet).",
        ),
        Option(
            name="value.columns",
            type=OptionType.COLUMNS,
            default=(),
            doc="Columns to read, in SQL type syntax (`carrier STRING, dep_delay DOUBLE`); not given: all, types inferred.",
        ),
        Option(name="key.columns", type=OptionType.LIST, default=(), doc="Columns that make the key; none: null keys."),
        Option(
            name="key.in.value",
            type=OptionType.BOOLEAN,
            default=True,
            doc="Whether the key columns are written in the value as well.",
        ),
        Option(
            name="timestamp.columns",
            type=OptionType.LIST,
            default=(),
            doc="Columns that hold the event time; the texts of several are joined by a blank. None: the time of reading.",
        ),
        Option(
            name="timestamp.format",
            type=OptionType.STRING,
            default=AUTO,
            doc="auto, epoch_ms, epoch_s, iso8601 or a strptime pattern such as `%d.%m.%Y %H:%M`.",
        ),
        Option(
            name="timestamp.zone",
            type=OptionType.STRING,
            default="UTC",
            check=_known_zone,
            doc="Time zone (IANA name) of times without an offset.",
        ),
        Option(
            name="timestamp.fixed.ms",
            type=OptionType.INTEGER,
            default=-1,
            minimum=-1,
            doc="One event time for all rows, in ms since 1970; 0 for tables that hold from the beginning. -1: not used.",
        ),
        Option(
            name="timestamp.order.check",
            type=OptionType.BOOLEAN,
            default=False,
            doc="Treat a row whose event time is before that of an earlier row as broken.",
        ),
        Option(
            name="sort.by",
            type=OptionType.LIST,
            default=(),
            doc=f"Columns to sort each file by before it is read, nulls first; in memory, up to {SORT_MAX_BYTES >> 20} MB.",
        ),
        Option(
            name="follow",
            type=OptionType.BOOLEAN,
            default=False,
            doc="Go on reading as the file grows and as new files match; false: complete at the end.",
        ),
        Option(
            name="on.change",
            type=OptionType.STRING,
            default=FAIL,
            allowed=(FAIL, RESTART),
            doc="When a file was truncated, rewritten or rotated: stop with an error, or read the new file from its beginning.",
        ),
        Option(
            name="rate.records.per.second",
            type=OptionType.DOUBLE,
            default=0.0,
            minimum=0,
            doc="Read no faster than this; 0: as fast as it goes.",
        ),
        Option(
            name="replay.speed",
            type=OptionType.DOUBLE,
            default=0.0,
            minimum=0,
            doc="Replay at this many seconds of event time per second (3600: an hour a second); 0: as fast as it goes.",
        ),
        Option(
            name="batch.max.records", type=OptionType.INTEGER, default=10_000, minimum=1, doc="Most records in one transaction."
        ),
        Option(
            name="block.bytes",
            type=OptionType.INTEGER,
            default=2 << 20,
            minimum=256,
            doc="How much of a text file is read at a time.",
        ),
        Option(name="csv.delimiter", type=OptionType.STRING, default=",", check=_one_character, doc="Delimiter of CSV."),
        Option(name="csv.header", type=OptionType.BOOLEAN, default=True, doc="Whether the first row of CSV names the columns."),
        Option(
            name="csv.null.values",
            type=OptionType.LIST,
            default=("",),
            doc="Texts of CSV, unquoted, that are null; the empty one always is. `NA` is a text unless named here.",
        ),
    ),
    checks=(_columns_exist, _no_conflict),
)
