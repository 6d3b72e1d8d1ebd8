"""Migrations: a folder of numbered scripts, each run once, in order; what was run is kept in ksqlDB's table of versions.

`V000003__add_orders.sql` is version 3. Each step is a record of the stream MIGRATION_EVENTS (key: the version, and CURRENT for
the latest), of which the table MIGRATION_SCHEMA_VERSIONS is the last state. A script that was run may not change afterwards.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from logflume.log import InvalidInput, LogflumeError
from logflume.log.schemas import STRING, Column

from . import ast
from .engine import SqlEngine
from .errors import StatementError
from .format import string_text
from .parser import parse_statement
from .results import PushQuery, Rows
from .scripts import StatementText, split_script
from .session import Session

FILE = re.compile(r"V(\d{1,6})__(\w+)\.sql", re.ASCII)
EVENTS, VERSIONS = "MIGRATION_EVENTS", "MIGRATION_SCHEMA_VERSIONS"
CURRENT = "CURRENT"
_FIELDS = ("VERSION", "NAME", "STATE", "CHECKSUM", "STARTED_ON", "COMPLETED_ON", "PREVIOUS", "ERROR_REASON")
_ERROR_CHARACTERS = 1000


class MigrationFault(InvalidInput):
    """A folder of migrations, or what was run of it, is not as it must be."""

    code = "MIGRATION"


@dataclass(frozen=True, slots=True)
class Migration:
    """A script of the folder."""

    version: int
    name: str
    path: Path
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.md5(self.text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """What is known of a version. state: RUNNING, MIGRATED or ERROR; times as ISO text, empty where there is none."""

    version: int
    name: str
    state: str
    checksum: str
    started_on: str
    completed_on: str
    previous: str
    error: str


def read_folder(folder: Path) -> list[Migration]:
    """Return the migrations of a folder by version. Raises MigrationFault: files that are none, versions given twice."""
    if not folder.is_dir():
        raise MigrationFault(f"there is no folder {folder}; `logflume sql migrate new NAME` makes it with a first migration")
    found: dict[int, Migration] = {}
    for path in sorted(folder.glob("*.sql")):
        match = FILE.fullmatch(path.name)
        if match is None or int(match.group(1)) < 1:
            raise MigrationFault(f"{path}: expected a name such as V000001__first_step.sql")
        version = int(match.group(1))
        if version in found:
            raise MigrationFault(
                f"{path}: version {version} is that of {found[version].path.name} already; give it another number"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MigrationFault(f"cannot read {path}: {error}") from None
        found[version] = Migration(version, match.group(2), path, text)
    return [found[version] for version in sorted(found)]


def new_migration(folder: Path, name: str) -> Path:
    """Make an empty migration with the next version; return its file."""
    words = "_".join(re.findall(r"[A-Za-z0-9]+", name))
    if not words:
        raise MigrationFault(f"expected a name of letters and digits, found {name!r}")
    folder.mkdir(parents=True, exist_ok=True)
    latest = max((m.version for m in read_folder(folder)), default=0)
    path = folder / f"V{latest + 1:06d}__{words}.sql"
    path.write_text(f"-- {name}\n", encoding="utf-8")
    return path


class Migrations:
    """The migrations of a folder and an engine. `now`: the time, as text is written with it."""

    def __init__(self, engine: SqlEngine, folder: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._engine, self._now = engine, now
        self.migrations = read_folder(folder)

    def applied(self) -> dict[int, Applied]:
        """Return what was run, by version: from the events, so that the last one counts at once."""
        if EVENTS not in self._engine.catalog.sources:
            return {}
        fields = ", ".join(f"LATEST_BY_OFFSET({name}) AS {name}" for name in _FIELDS)
        (rows,) = self._engine.execute(f"SELECT VERSION_KEY, {fields} FROM {EVENTS} GROUP BY VERSION_KEY;")
        assert isinstance(rows, Rows)
        found: dict[int, Applied] = {}
        for key, version, *others in rows.rows:
            if key != CURRENT and str(version).isdigit():
                found[int(version)] = Applied(int(version), *("" if v is None else str(v) for v in others))
        return found

    def problems(self) -> list[str]:
        """Return what is wrong with the scripts that were run: changed or lost since, or older than one that was."""
        applied = self.applied()
        files = {m.version: m for m in self.migrations}
        found: list[str] = []
        done = {version: each for version, each in applied.items() if each.state == "MIGRATED"}
        for version, each in sorted(done.items()):
            if version not in files:
                found.append(f"version {version} ({each.name}) was run, and its script is not in the folder any more")
            elif files[version].checksum != each.checksum:
                name = files[version].path.name
                found.append(f"version {version}: {name} has changed since it was run; put it back, and write a new one")
        late = [m for m in self.migrations if m.version < max(done, default=0) and m.version not in done]
        found += [f"version {m.version}: {m.path.name} was never run, and later ones were; give it a higher number" for m in late]
        return found

    def pending(self) -> list[Migration]:
        """Return the scripts that are to be run, in order."""
        done = {version for version, each in self.applied().items() if each.state == "MIGRATED"}
        return [m for m in self.migrations if m.version not in done]

    def apply(self, *, until: int | None = None, runs_again: bool = False) -> Iterator[Migration]:
        """Run what is to be run, one script after the other; yield each when it is done.

        All scripts are read in full first. One that fails is recorded as ERROR, and run again from its start by the next call.

        Raises:
            MigrationFault: `problems`, or a version that another process runs, or died in (`runs_again` runs it).
            StatementError: a statement is refused; those before it stay done.
        """
        problems = self.problems()
        if problems:
            raise MigrationFault("\n".join(problems))
        wanted = [m for m in self.pending() if until is None or m.version <= until]
        applied = self.applied()
        for migration in wanted:
            known = applied.get(migration.version)
            if known is not None and known.state == "RUNNING" and not runs_again:
                raise MigrationFault(
                    f"version {migration.version} is running since {known.started_on}: another process applies it, or ended "
                    "within it. If none does, look at what it has done, and apply with --again"
                )
        scripts = {migration.version: _statements(migration) for migration in wanted}
        if wanted:
            self._initialize()
        previous = max((v for v, each in applied.items() if each.state == "MIGRATED"), default=None)
        for migration in wanted:
            self._run(migration, scripts[migration.version], "<none>" if previous is None else str(previous))
            previous = migration.version
            yield migration

    def _initialize(self) -> None:
        columns = ", ".join(f"{name} STRING" for name in _FIELDS)
        latest = ", ".join(f"LATEST_BY_OFFSET({name}) AS {name}" for name in _FIELDS)
        events = f"(VERSION_KEY STRING KEY, {columns}) WITH (KAFKA_TOPIC='{EVENTS}', VALUE_FORMAT='JSON', PARTITIONS=1)"
        query = f"SELECT VERSION_KEY, {latest} FROM {EVENTS} GROUP BY VERSION_KEY"
        if EVENTS not in self._engine.catalog.sources:
            self._engine.execute_one(f"CREATE STREAM {EVENTS} {events};")
        if VERSIONS not in self._engine.catalog.sources:
            self._engine.execute_one(f"CREATE TABLE {VERSIONS} WITH (KAFKA_TOPIC='{VERSIONS}') AS {query};")

    def _run(self, migration: Migration, statements: Sequence[StatementText], previous: str) -> None:
        started = self._now().isoformat(timespec="milliseconds")
        self._record(migration, "RUNNING", started, "", previous, "")
        session = Session()
        try:
            for statement in statements:
                with _named(migration):
                    results = self._engine.execute_one(statement, session=session)
                assert not any(isinstance(result, PushQuery) for result in results)
        except LogflumeError as error:
            self._record(migration, "ERROR", started, "", previous, str(error)[:_ERROR_CHARACTERS])
            if isinstance(error, StatementError):
                raise
            raise MigrationFault(f"{migration.path.name}: {error}") from error
        self._record(migration, "MIGRATED", started, self._now().isoformat(timespec="milliseconds"), previous, "")

    def _record(self, m: Migration, state: str, started: str, completed: str, previous: str, error: str) -> None:
        values = (str(m.version), m.name, state, m.checksum, started, completed, previous, error)
        shown = ", ".join(map(string_text, values))
        keys = (str(m.version), CURRENT)
        rows = ", ".join(f"({string_text(key)}, {shown})" for key in keys)
        self._engine.execute_one(f"INSERT INTO {EVENTS} (VERSION_KEY, {', '.join(_FIELDS)}) VALUES {rows};")

    def info(self) -> Rows:
        """Return every version that there is or was, with its state; PENDING: to be run."""
        applied, files = self.applied(), {m.version: m for m in self.migrations}
        rows = []
        for version in sorted({*applied, *files}):
            known, file = applied.get(version), files.get(version)
            name = file.name if file is not None else known.name if known is not None else ""
            rest = (
                (known.state, known.started_on, known.completed_on, known.error) if known is not None else ("PENDING", "", "", "")
            )
            rows.append((str(version), name, *rest))
        columns = tuple(Column(name, STRING) for name in ("VERSION", "NAME", "STATE", "STARTED", "COMPLETED", "ERROR"))
        return Rows("MIGRATIONS", columns, tuple(rows))


@contextmanager
def _named(migration: Migration) -> Iterator[None]:
    """Say in which script an error is."""
    try:
        yield
    except StatementError as error:
        error.add_note(f"in {migration.path}")
        raise


def _statements(migration: Migration) -> list[StatementText]:
    """Return the statements of a script. Raises StatementError: one is not of the dialect, or only reads."""
    found = list(split_script(migration.text))
    variables: dict[str, str] = {}
    for source in found:
        with _named(migration):
            statement = parse_statement(source, variables=variables)
        if isinstance(statement, ast.Define):
            variables[statement.name] = statement.value
        if isinstance(statement, ast.QueryStatement | ast.Print | ast.RunScript):
            error = StatementError(
                f"{migration.path.name}: a migration changes what there is; queries and scripts have no place in it"
            )
            raise error.locate(source.text, first_line=source.line, first_column=source.column)
    return found
