"""/ksql: statements that define, change, show and describe; one entity each. Queries have endpoints of their own."""

from __future__ import annotations

from typing import Any

from logflume.log import LogflumeError
from logflume.sql import ast
from logflume.sql.engine import SqlEngine
from logflume.sql.errors import StatementError
from logflume.sql.inserts import Sending
from logflume.sql.parser import KEPT_CHARS_MAX, parse_statement, sole_scanned
from logflume.sql.scripts import split_script
from logflume.sql.session import Session
from logflume.sql.templates import scan

from .entities import command_of, entity_of
from .errors import QUERY_ENDPOINT, RestError, as_rest_error

STATUSES_KEPT = 1000


class Statements:
    """Executes scripts and remembers the last statuses of what they changed. Thread-safe."""

    def __init__(self, engine: SqlEngine) -> None:
        self._engine = engine
        self._statuses: dict[str, dict[str, Any]] = {}

    def insert_at_once(self, script: str, session: Session) -> Sending | None:
        """Send the rows of a script that is one INSERT VALUES and waits for nothing but the disk; None: `execute` has to."""
        scanned = sole_scanned(script) if len(script) <= KEPT_CHARS_MAX else None
        return None if scanned is None else self._engine.at_once.insert(scanned, session)

    def execute(self, script: str, session: Session) -> list[dict[str, Any]]:
        """Execute a script; return one entity for each statement that has one.

        INSERT VALUES that follow each other are written together.

        Raises:
            RestError: a statement is refused; those before it are done, and told.
        """
        entities: list[dict[str, Any]] = []
        text, writes = script, self._engine.rows.pending_writes()
        try:
            try:
                for source in split_script(script):
                    text = f"{source.text};"
                    scanned = scan(source.text)
                    rows = None if scanned is None else self._engine.at_once.rows(scanned, session)
                    if rows is not None:
                        writes.add(text, rows)
                        continue
                    statement = parse_statement(source, variables=session.variables)
                    if isinstance(statement, ast.QueryStatement | ast.Print):
                        raise RestError(
                            QUERY_ENDPOINT,
                            "The following statement types should be issued to '/query' or '/query-stream': SELECT, PRINT",
                            text,
                            tuple(entities),
                        )
                    if not isinstance(statement, ast.InsertValues):
                        writes.wait()
                    results = self._engine.execute_one(source, session=session, writes=writes)
                    entity = entity_of(statement, text, results, self._engine, session)
                    if entity is not None:
                        entities.append(entity)
                        self._remember(entity, statement)
            finally:
                writes.wait()  # what was sent before a fault is done too
        except (LogflumeError, RecursionError) as error:
            at = writes.text or (error.text or text if isinstance(error, StatementError) else text)
            raise as_rest_error(error, at, tuple(entities)) from error
        return entities

    def _remember(self, entity: dict[str, Any], statement: ast.Statement) -> None:
        if entity["@type"] == "currentStatus":
            self._statuses["/".join(command_of(statement)).replace("`", "")] = entity["commandStatus"]
            while len(self._statuses) > STATUSES_KEPT:
                self._statuses.pop(next(iter(self._statuses)))

    def statuses(self) -> dict[str, str]:
        """Return the state of each command that is remembered."""
        return {name: status["status"] for name, status in list(self._statuses.items())}

    def status(self, command_id: str) -> dict[str, Any] | None:
        """Return the status of a command, None when it is not remembered."""
        return self._statuses.get(command_id.replace("`", ""))
