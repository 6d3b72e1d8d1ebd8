"""The main job of logflume on real data, as one story: `make demo`, or `python -m examples.demo`.

The flights of New York 2013 arrive live; a topology in Python and SQL queries follow them; the engine is killed and goes on; a
query over the whole history is computed on Spark and handed to the live query; results leave as Parquet and into SQLite. Each
step is a command that can be run alone; the demo prints it before it runs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.table import Table

from logflume.log import Log, TopicPartition, connect

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "demo-data"
EXAMPLES = ROOT / "examples"
FLIGHTS = 336_776
LIVE_RATE = 16_000
FIRST_PART_S = 9.0
console = Console(highlight=False)
STARTED_S = time.monotonic()


def main() -> int:
    """Run the story; returns 0 when every comparison in it held."""
    prepare()
    address = f"127.0.0.1:{free_port()}"
    with processes() as start:
        serve(start, address)
        with connect(address) as log:
            good = story(start, log, address)
        say(f"the story took {clock().strip()}")
    return 0 if good else 1


def story(start: Any, log: Log, address: str) -> bool:
    """The steps, in order."""
    tables = [f"examples/flights/{name}.toml" for name in ("airlines", "airports", "planes", "weather")]
    run("connect", "run", *tables, "--once", "--bootstrap", address)
    run("sql", "-f", "examples/queries.sql", "--bootstrap", address)
    app = start("topology", "run", "examples/delays.py", "--state-dir", "demo-data/state", "--bootstrap", address)
    start("flights", *source(address))
    watch(log, address, FIRST_PART_S)
    say("[bold]3. A pull query answers from state, and any Kafka client reads the results[/bold]")
    run("sql", "-f", "examples/pull.sql", "--bootstrap", address, shown=True)
    subprocess.run([sys.executable, str(EXAMPLES / "read_with_confluent.py"), address, "delays"], check=True)
    pause_s = kill_and_restart(start, app, log, address)
    same = backfill_and_compare(log, address)
    wait_for(log, address, "the last flight")
    same = compare_applications(log, address) and same
    sinks(address)
    chart()
    picture()
    say("[bold]Three things to try[/bold]")
    console.print("  logflume serve --data demo-data/log                        # the same data again, then in another terminal:")
    console.print('  logflume sql -e "SELECT * FROM very_late EMIT CHANGES;"     # --bootstrap 127.0.0.1:9092 names the server')
    console.print("  python examples/delays_test.py                             # how a topology is tested without a broker")
    return same and pause_s < 5


def prepare() -> None:
    """Export the flights once; start with an empty log."""
    if not (DATA / "flights.csv").exists():
        subprocess.run([sys.executable, str(EXAMPLES / "flights" / "prepare.py"), str(DATA)], check=True)
    for left in ("log", "state", "out"):
        shutil.rmtree(DATA / left, ignore_errors=True)
    for left in DATA.glob("delays.db*"):
        left.unlink()


def source(address: str) -> list[str]:
    """The command that plays the flights as if they were live."""
    rate = f"rate.records.per.second={LIVE_RATE}"
    return ["connect", "run", "examples/flights/flights.toml", "--set", rate, "--bootstrap", address]


@contextmanager
def processes() -> Iterator[Any]:
    """Start commands in the background; stop them all at the end."""
    running: list[subprocess.Popen[bytes]] = []
    (DATA / "logs").mkdir(parents=True, exist_ok=True)

    def start(name: str, *args: str) -> subprocess.Popen[bytes]:
        show_command((*args, "&"))
        with (DATA / "logs" / f"{name}.log").open("ab") as output:
            process = subprocess.Popen([sys.executable, "-m", "logflume", *args], cwd=ROOT, stdout=output, stderr=output)
        running.append(process)
        return process

    try:
        yield start
    finally:
        for process in reversed(running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def serve(start: Any, address: str) -> None:
    """Step 1: the stack, without any configuration."""
    say("[bold]1. One command starts the stack[/bold]; connectors load the tables and play the flights")
    process = start("serve", "serve", "--data", str(DATA / "log"), "--listen", address, "--registry", "off", "--sql", "off")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address.split(":"), timeout=1).close()  # type: ignore[arg-type]
            return
        except OSError:
            assert process.poll() is None, (DATA / "logs" / "serve.log").read_text()
            time.sleep(0.02)
    raise TimeoutError("the server did not start")


def run(*args: str, shown: bool = False) -> None:
    """Run a command to its end."""
    show_command(args)
    output = None if shown else subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-m", "logflume", *args], cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"logflume {args[0]} failed: {done.stderr}")


def show_command(args: tuple[str, ...]) -> None:
    """Print a command as a user would type it; long SQL is named, not shown."""
    words = [arg if " " not in arg else '"$(cat examples/backfill.sql)"' for arg in args]
    console.print(f"[dim]{clock()}[/dim] [green]$[/green] logflume {' '.join(words)}", soft_wrap=True)


def clock() -> str:
    """Return the seconds since the start of this process."""
    return f"{time.monotonic() - STARTED_S:5.1f} s"


def watch(log: Log, address: str, seconds: float) -> None:
    """Step 2: a live table of what flows, with rates and lags."""
    say("[bold]2. A topology in Python and SQL queries run while the flights arrive[/bold]")
    ends_at = time.monotonic() + seconds
    before, before_s = count(log, ("flights", "delays", "daily", "very_late")), time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        while time.monotonic() < ends_at:
            time.sleep(0.7)
            now, now_s = count(log, tuple(before)), time.monotonic()
            live.update(progress_table(log, now, {name: (now[name] - before[name]) / (now_s - before_s) for name in now}))
            before, before_s = now, now_s


def progress_table(log: Log, records: dict[str, int], rates: dict[str, float]) -> Table:
    """Return records, rates and lags as a table, with the newest results below."""
    lags = {
        "delays": lag(log, "delays"),
        "daily": lag(log, query_group(log, "DAILY")),
        "very_late": lag(log, query_group(log, "VERY_LATE")),
    }
    table = Table(title="New York 2013, live")
    for name in ("topic", "made by", "records", "per second", "lag"):
        table.add_column(name, justify="left" if name in ("topic", "made by") else "right")
    made_by = {"flights": "file source", "delays": "topology in Python", "daily": "SQL, windowed", "very_late": "SQL, join"}
    for name, total in records.items():
        behind = lags.get(name)
        table.add_row(name, made_by[name], f"{total:,}", f"{rates[name]:,.0f}", "" if behind is None else f"{behind:,}")
    return table


def kill_and_restart(start: Any, app: subprocess.Popen[bytes], log: Log, address: str) -> float:
    """Step 4: SIGKILL in the middle; the same command goes on where the last transaction ended. Returns the pause in seconds."""
    say("[bold]4. The engine is killed in the middle[/bold] (kill -9) and goes on")
    app.kill()
    app.wait()
    before = count(log, ("delays",))["delays"]
    killed_at = time.monotonic()
    start("topology", "run", "examples/delays.py", "--state-dir", "demo-data/state", "--bootstrap", address)
    while count(log, ("delays",))["delays"] == before and time.monotonic() - killed_at < 60:
        time.sleep(0.02)
    pause_s = time.monotonic() - killed_at
    console.print(f"first output {pause_s:.1f} s after the kill, the start of Python and its imports included")
    return pause_s


def backfill_and_compare(log: Log, address: str) -> bool:
    """Step 5: the whole history on Spark, handed to the live query while flights go on arriving."""
    say("[bold]5. A query over the whole history[/bold] is computed on Spark and handed to the live query")
    sql = (EXAMPLES / "backfill.sql").read_text().partition("\n")[2]
    if not has_java():
        console.print("Java 17 is missing: the same backfill runs in this process instead (--engine local)")
        run("backfill", "-e", sql, "--engine", "local", "--bootstrap", address, shown=True)
        return True
    run("backfill", "-e", sql, "--bootstrap", address, shown=True)
    return True


def compare_applications(log: Log, address: str) -> bool:
    """The same query purely live, and on Structured Streaming; all results record for record."""
    live = (EXAMPLES / "backfill.sql").read_text().partition("\n")[2].replace("weekly", "weekly_live")
    run("sql", "-e", live, "--bootstrap", address)
    followed = live.replace("weekly_live", "weekly_spark")
    names = ["WEEKLY_LIVE"]
    if has_java():
        checkpoint = str(DATA / "state" / "spark")
        run("sql", "-e", f"SET 'engine' = 'spark'; {followed}", "--bootstrap", address)
        run("sql", "on-spark", "--until-end", "--state-dir", checkpoint, "--bootstrap", address)
        names.append("weekly_spark")
    wait_for(log, address, "the live query")
    handed = newest(log, "weekly")
    same = True
    for topic, how in (("weekly_live", "purely live"), ("weekly_spark", "on Structured Streaming"))[: len(names)]:
        other = newest(log, topic)
        different = [key for key in handed.keys() | other.keys() if handed.get(key) != other.get(key)]
        console.print(f"Spark, then live: {len(handed)} results; {how}: {len(other)}; [bold]differences: {len(different)}[/bold]")
        same = same and not different and len(handed) > 0
    return same


def wait_for(log: Log, address: str, what: str) -> None:
    """Wait until all flights are in the log and every query has read them."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        live = [group for group in log.admin().list_groups() if group == "delays" or group.startswith("logflume-sql-")]
        groups = [group for group in live if "WEEKLY_SPARK" not in group]
        if count(log, ("flights",))["flights"] >= FLIGHTS and all(lag(log, group) == 0 for group in groups):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{what} was not reached within 120 s")


def sinks(address: str) -> None:
    """Step 6: results leave."""
    say("[bold]6. Results leave[/bold]: Parquet files and a SQLite table, each record exactly once")
    for name in ("delays-parquet", "delays-sqlite"):
        run("connect", "run", f"examples/flights/{name}.toml", "--once", "--bootstrap", address)
    with sqlite3.connect(DATA / "delays.db") as database:
        rows = database.execute("SELECT count(*), sum(flights) FROM delays").fetchone()
    files = list((DATA / "out").rglob("*.parquet"))
    console.print(f"SQLite: {rows[0]:,} rows of an airline's hour, {rows[1]:,} delayed flights; Parquet: {len(files)} files")


def chart() -> None:
    """Draw delayed flights per month from the SQLite table."""
    query = """SELECT strftime('%m', window_start) AS month, sum(flights),
               sum(flights * mean_delay) / sum(flights) FROM delays GROUP BY month ORDER BY month"""
    with sqlite3.connect(DATA / "delays.db") as database:
        rows = database.execute(query).fetchall()
    most = max(row[1] for row in rows)
    console.print("flights that left more than 15 minutes late, per month of 2013, and how late on average")
    for month, flights, mean_delay in rows:
        bar = Bar(size=most, begin=0, end=flights, width=50, color="cyan")
        console.print(Columns([f"  {month}", bar, f"{flights:,}  {mean_delay:.0f} min"]))


def picture() -> None:
    """Write the topology's picture."""
    sys.path.insert(0, str(EXAMPLES))
    from delays import app  # type: ignore[import-not-found]

    path = DATA / "delays.svg"
    path.write_text(app._repr_svg_())
    console.print(f"the picture of the topology: {path.relative_to(ROOT)}")


def count(log: Log, topics: tuple[str, ...]) -> dict[str, int]:
    """Return the offsets in each topic; 0 for one that does not exist yet."""
    admin = log.admin()
    there = set(admin.list_topics())
    known = [topic for topic in topics if topic in there]
    described = admin.describe_topics(known) if known else {}
    every = [TopicPartition(topic, p) for topic in known for p in range(described[topic].partitions)]
    ends = admin.end_offsets(every, read_committed=True) if every else {}
    return {topic: sum(end for tp, end in ends.items() if tp.topic == topic) for topic in topics}


def lag(log: Log, group: str | None) -> int | None:
    """Return how many records a group has still to read; None when it has no offsets yet."""
    if group is None:
        return None
    committed = log.admin().group_offsets(group)
    if not committed:
        return None
    ends = log.admin().end_offsets(committed, read_committed=True)
    return sum(max(0, ends[tp] - at.offset) for tp, at in committed.items())


def query_group(log: Log, sink: str) -> str | None:
    """Return the consumer group of the query that fills a sink."""
    return next((group for group in log.admin().list_groups() if f"_{sink}_" in group), None)


def newest(log: Log, topic: str) -> dict[bytes | None, tuple[bytes | None, int]]:
    """Return the newest value and timestamp of each key, committed records only."""
    described = log.admin().describe_topics([topic])[topic]
    every = [TopicPartition(topic, p) for p in range(described.partitions)]
    ends = log.admin().end_offsets(every, read_committed=True)
    consumer = log.consumer()
    consumer.assign(every)
    found = {}
    while any(consumer.position(tp) < ends[tp] for tp in every):
        for chunk in consumer.poll(timeout_s=5.0):
            for record in chunk.records():
                found[record.key] = (record.value, record.timestamp_ms)
    consumer.close()
    return found


def has_java() -> bool:
    """Return whether Spark can start."""
    from logflume.streams.spark.session import java_version

    return (java_version() or 0) >= 17


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """Print a heading."""
    console.print()
    console.print(f"[dim]{clock()}[/dim] {text}", soft_wrap=True)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    sys.exit(main())
