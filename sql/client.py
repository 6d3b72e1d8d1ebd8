"""A client of the SQL server: statements and queries over HTTP, with the results that the engine itself gives.

It speaks ksqlDB's REST interface, so that it may be another server of that interface. What SET and DEFINE change stays here and
goes along with each request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from logflume.log import LogflumeError
from logflume.log.registry import credentials_of
from logflume.log.schemas import Column, DataType, from_json

from . import ast
from .entity_results import results_of
from .errors import QueryFailed, SqlError
from .executor import KnownSource
from .parser import parse_statement
from .results import BUFFERED_ROWS_MAX, PushQuery, PushRow, Result, Rows, inserted, watch_function
from .script_files import all_statements
from .scripts import StatementText
from .session import Session, session_statement
from .transport import TIMEOUT_S, Answer, Transport
from .types import resolve_type

AUTH_VARIABLE = "LOGFLUME_SQL_AUTH"
INSERT_ROWS_MAX = 5_000
"""Of one request; more go as several."""
_STOP_TIMEOUT_S = 10.0
_MEDIA_TYPE = "application/vnd.ksqlapi.delimited.v1"


class ServerRefused(SqlError):
    """The server refuses a request. `error_code`: its own, which begins with the HTTP status."""

    code = "SQL_SERVER_REFUSED"

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class SqlClient:
    """One session with a SQL server. Context manager. Push queries that it started are to be closed by who takes them.

    Args:
        address: `http://HOST:PORT`, or https; with `user:password@` where the server asks for that, else $LOGFLUME_SQL_AUTH
            (`basic USER:PASSWORD` or `bearer TOKEN`).
        ca: who signed the server's certificate (PEM), where the system does not know that.

    >>> import pathlib, tempfile
    >>> from logflume.log import connect
    >>> from logflume.sql import SqlEngine
    >>> from logflume.sql.rest import SqlServer
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with connect(folder / "log") as log, SqlEngine(log, folder / "sql") as engine, SqlServer(engine) as server:
    ...     with SqlClient(server.address) as client:
    ...         (made,) = client.execute(
    ...             "CREATE STREAM s (id INT KEY, v STRING) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
    ...         )
    ...         count = client.insert("s", [{"id": 1, "v": "one"}])
    ...         (found,) = client.execute("SELECT * FROM s;")
    >>> made.text, count, found.rows
    ('Stream S created', 1, ((1, 'one'),))
    """

    def __init__(self, address: str, *, ca: Path | None = None) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._http = Transport(self.address, authorization=credentials_of(self.address, variable=AUTH_VARIABLE), ca=ca)
        self._session = Session()

    def __enter__(self) -> SqlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def execute(
        self, text: str, properties: Mapping[str, str] | None = None, *, session: Session | None = None
    ) -> Iterator[Result]:
        """Execute a script statement by statement; yield each result before the next statement is sent.

        Raises:
            ServerRefused: a statement is refused; those before it stay done. StatementError: its text is of no statement.
            TransportError: the server does not answer.
        """
        for source in all_statements(text, session or self._session):
            yield from self.execute_one(source, properties, session=session)

    def execute_one(
        self, source: StatementText | str, properties: Mapping[str, str] | None = None, *, session: Session | None = None
    ) -> list[Result]:
        """Execute one statement; most give one result."""
        user = session or self._session
        text = source if isinstance(source, str) else f"{source.text};"
        statement = parse_statement(source, variables=user.variables)
        settings = {**user.properties, **(properties or {})}
        if isinstance(statement, ast.SetProperty | ast.UnsetProperty | ast.Define | ast.Undefine | ast.RunScript):
            return [session_statement(statement, user)]
        if isinstance(statement, ast.QueryStatement | ast.Print):
            return [self._query(statement, text, settings, user)]
        asked: dict[str, Any] = {"ksql": text, "streamsProperties": settings, "sessionVariables": user.variables}
        if user.on_read is not None:
            asked["waitsUntilRead"] = True
        found: list[Result] = [result for entity in self.request("POST", "/ksql", asked) for result in results_of(entity)]
        if isinstance(statement, ast.InsertValues):  # of which a server says nothing
            found.append(inserted(len(statement.rows)))
        return found

    def insert(self, target: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows to a stream or table; return how many, once they are on disk.

        Raises:
            ServerRefused: no such target, or rows were refused, with their numbers from 0 and causes; the others are written.
        """
        count, refused = 0, list[str]()
        each = iter(rows)
        while part := list(itertools.islice(each, INSERT_ROWS_MAX)):
            lines = [json.dumps({"target": target}), *(json.dumps(dict(row), default=str) for row in part)]
            for told in self._lines("/inserts-stream", "\n".join(lines) + "\n"):
                if told.get("status") != "ok":
                    refused.append(f"row {count + int(told.get('seq', 0))}: {told.get('message')}")
            count += len(part)
        if refused:
            more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
            raise ServerRefused(40000, f"{len(refused)} of {count} rows are refused: {'; '.join(refused[:3])}{more}")
        return count

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of an endpoint as data. Raises ServerRefused, TransportError."""
        content = self._sent(method, path, body).read()
        return json.loads(content) if content else None

    def check_reachable(self) -> None:
        """Return if the server answers. Raises ServerRefused, TransportError."""
        self.request("GET", "/info")

    def known_sources(self) -> list[KnownSource]:
        """Return the streams and tables that the server has, with their columns."""
        found = self.request("POST", "/ksql", {"ksql": "DESCRIBE STREAMS; DESCRIBE TABLES;"})
        described = [each for entity in found for each in entity["sourceDescriptions"]]
        return [KnownSource(each["name"], each["type"], tuple(f["name"] for f in each["fields"])) for each in described]

    def known_functions(self) -> list[str]:
        (found,) = self.request("POST", "/ksql", {"ksql": "SHOW FUNCTIONS;"})
        return [each["name"] for each in found["functions"]]

    def about(self) -> list[str]:
        """Return what the server says of itself."""
        info = self.request("GET", "/info")["KsqlServerInfo"]
        return [f"Server {info['version']}, service {info['ksqlServiceId']}."]

    def _query(self, statement: ast.QueryStatement | ast.Print, text: str, settings: dict[str, str], user: Session) -> Result:
        asked: dict[str, Any] = {"sql": text, "properties": settings, "sessionVariables": user.variables}
        is_push = isinstance(statement, ast.Print) or statement.query.emit is not None
        if user.on_read is not None and not is_push:
            asked["tellsRead"] = True
        answer = self._sent("POST", "/query-stream", asked, accept=_MEDIA_TYPE, timeout_s=None if is_push else TIMEOUT_S)
        lines = answer.lines()
        try:
            head = _head(lines, user.on_read)
            columns = tuple(Column(n, _type(t)) for n, t in zip(head["columnNames"], head["columnTypes"], strict=True))
            if is_push:
                limit = statement.limit if isinstance(statement, ast.Print) else statement.query.limit
                return self._followed(head["queryId"], columns, answer, lines, limit)
            wanted = None if user.rows_max is None else user.rows_max + 1
            rows = tuple(_row(json.loads(line, parse_float=Decimal), columns) for line in itertools.islice(lines, wanted))
            answer.close()
            return Rows("SELECT", columns, rows).first(user.rows_max)
        except BaseException:
            answer.close()
            raise

    def _followed(
        self, query_id: str, columns: tuple[Column, ...], answer: Answer, lines: Iterator[bytes], limit: int | None
    ) -> PushQuery:
        """Return a push query whose rows a thread takes from an answer."""
        rows: queue.Queue[PushRow] = queue.Queue(BUFFERED_ROWS_MAX)
        over, failed = threading.Event(), list[BaseException]()
        put = watch_function(rows, over.is_set)

        def read() -> None:
            try:
                for line in lines:
                    put(None, _row(json.loads(line, parse_float=Decimal), columns), 0)
                failed.append(QueryFailed("the server ended it"))
            except (LogflumeError, ValueError) as error:
                failed.append(error)
            finally:
                answer.close()

        thread = threading.Thread(target=read, name="sql-client", daemon=True)

        def stop() -> None:
            over.set()
            with contextlib.suppress(LogflumeError):
                self.request("POST", "/close-query", {"queryId": query_id})
            thread.join(_STOP_TIMEOUT_S)

        thread.start()
        return PushQuery(query_id, columns, rows, limit=limit, check=lambda: failed[0] if failed else None, stop=stop)

    def _lines(self, path: str, content: str) -> Iterator[dict[str, Any]]:
        for line in self._sent("POST", path, content).read().splitlines():
            yield json.loads(line)

    def _sent(
        self, method: str, path: str, body: Any = None, *, accept: str = "application/json", timeout_s: float | None = TIMEOUT_S
    ) -> Answer:
        """Send a body, text as it is, else as JSON; return the answer as it begins. Raises ServerRefused, TransportError."""
        content = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {"Accept": accept, "Content-Type": "application/json"}
        answer = self._http.send(method, path, content, headers=headers, timeout_s=timeout_s)
        if answer.is_success:
            return answer
        told = answer.read()
        try:
            refusal = json.loads(told)
            raise ServerRefused(int(refusal["error_code"]), str(refusal["message"]))
        except (ValueError, KeyError, TypeError):
            raise ServerRefused(answer.status * 100, told.decode(errors="replace")[:500] or answer.reason) from None


def _head(lines: Iterator[bytes], on_read: Callable[[int, int], object] | None) -> dict[str, Any]:
    """Return what the rows of an answer are; tell how far the server has read until then.

    Raises:
        ServerRefused: it had begun to tell that before it found the query at fault. QueryFailed: the answer has no head.
    """
    for line in lines:
        told: dict[str, Any] = json.loads(line)
        if "columnNames" in told:
            return told
        if "error_code" in told:
            raise ServerRefused(int(told["error_code"]), str(told.get("message")))
        if on_read is not None and "recordsRead" in told:
            on_read(int(told["recordsRead"]), int(told["recordsTotal"]))
    raise QueryFailed("the server ended it")


def _type(text: str) -> DataType:
    statement = parse_statement(f"CREATE TYPE T AS {text}")
    assert isinstance(statement, ast.CreateType)
    return resolve_type(statement.type, {})


def _row(found: Any, columns: tuple[Column, ...]) -> tuple[Any, ...]:
    """Return a line as a row. Raises QueryFailed: it tells of an error."""
    if isinstance(found, dict):
        raise QueryFailed(str(found.get("message", found)))
    return tuple(from_json(value, column.type, column.name) for value, column in zip(found, columns, strict=True))
