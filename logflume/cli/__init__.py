"""The `logflume` command: a table of commands, each in a module of its own that is imported only when it is called.

`logflume --help` must stay within 0.2 s, so nothing heavy may be imported here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that holds its typer `app`, and one line for the overview."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "serve": Command("serve", "Start the broker, the SQL engine and the connectors"),
    "topic": Command("topic", "Create, list, describe, extend and delete topics"),
    "produce": Command("produce", "Write records from standard input or a file"),
    "consume": Command("consume", "Read records, from the beginning unless told otherwise"),
    "group": Command("group", "List, describe, reset and delete consumer groups"),
    "config": Command("config", "Show and change settings, each with its source"),
    "txn": Command("txn", "List, describe and abort transactions"),
    "secure": Command("secure", "Make certificates, users and settings of a broker that others may reach"),
    "user": Command("user", "Add, list and delete users"),
    "cert": Command("cert", "Issue, show and renew certificates"),
    "profile": Command("profile", "Add, list, use and test profiles: where a log is and how to log in there"),
    "acl": Command("acl", "Create, list and delete access rules"),
    "quota": Command("quota", "Set, list and remove quotas of users, clients and addresses"),
    "log": Command("log", "Dump and verify the files of a log"),
    "sql": Command("sql", "SQL shell; -e and -f run statements; `sql test` runs case files"),
    "connect": Command("connect", "Run, check and list connectors"),
    "schema": Command("schema", "Register, list, show, check, compare and delete schemas of a registry"),
    "registry": Command("registry", "Run a schema registry alone, beside any Kafka cluster"),
    "run": Command("run", "Run a Python file that defines a topology"),
    "streams": Command("streams", "Watch applications, compare topologies, put dead letters back"),
    "backfill": Command("backfill", "Compute a query's history on Spark and hand it to the live query"),
    "archive": Command("archive", "Copy topics into Parquet files with their offsets, for backfills after retention"),
    "doctor": Command("doctor", "Check this machine and a data directory or server"),
}

EXAMPLES = """\
Examples:
  logflume serve --data ./data --listen 127.0.0.1:9092
  logflume topic create flights --partitions 4 --bootstrap 127.0.0.1:9092
  logflume sql -e "SELECT * FROM flights EMIT CHANGES LIMIT 5;" --bootstrap 127.0.0.1:9092

Where the log is: --data DIR opens it in this process (or joins the process that holds it), --bootstrap HOST:PORT
speaks to a logflume broker or an Apache Kafka cluster, --profile NAME (of any command) to one that `logflume profile` knows
how to log in to. Without any: $LOGFLUME_BOOTSTRAP, $LOGFLUME_PROFILE, $LOGFLUME_DATA, the profile in use, then ./data.
"""


def overview() -> str:
    """Return the text of `logflume --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: logflume COMMAND [OPTIONS]   (logflume COMMAND --help shows more, with an example)",
            "",
            "One package for an event backbone: a Kafka-protocol log, stream topologies, SQL, connectors, Spark backfills.",
            "",
            "Commands:",
            *lines,
            "",
            EXAMPLES,
        ]
    )


def take_profile(args: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments without `--profile NAME`, which every command has, and its NAME.

    >>> take_profile(["topic", "list", "--profile", "prod"])
    (['topic', 'list'], 'prod')
    """
    rest: list[str] = []
    profile = None
    position = 0
    while position < len(args) and args[position] != "--":
        if args[position] == "--profile" and position + 1 < len(args):
            profile = args[position + 1]
            position += 2
        elif args[position].startswith("--profile="):
            profile = args[position].removeprefix("--profile=")
            position += 1
        else:
            rest.append(args[position])
            position += 1
    return rest + args[position:], profile


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 an error that was explained, 2 wrong usage."""
    args, profile = take_profile(list(sys.argv[1:] if argv is None else argv))
    before = os.environ.get("LOGFLUME_PROFILE")
    try:
        if profile is not None:
            os.environ["LOGFLUME_PROFILE"] = profile  # for this process and those that it starts
        return _main(args)
    finally:
        if profile is not None:
            os.environ.pop("LOGFLUME_PROFILE")
            os.environ.update({"LOGFLUME_PROFILE": before} if before is not None else {})


def _main(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        with contextlib.suppress(BrokenPipeError):
            print(overview(), flush=True)
        return 0
    if args[0] in ("--version", "version"):
        from logflume import __version__

        print(f"logflume {__version__}")
        return 0
    name = args[0]
    if name not in COMMANDS:
        from logflume.log import UnknownName

        print(f"logflume: {UnknownName('command', name, COMMANDS)}\n`logflume --help` lists them.", file=sys.stderr)
        return 2
    from logflume.cli.common import run_app

    return run_app(COMMANDS[name].module, f"logflume {name}", args[1:])
