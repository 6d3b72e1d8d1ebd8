"""Faults as the REST interface tells them: {@type, error_code, message, ...}; a code is the HTTP status * 100 + a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logflume.log import LogflumeError, TransportError
from logflume.sql.assertions import AssertionRefused
from logflume.sql.errors import SqlError, StatementError
from logflume.sql.pull_reads import StateUnavailable
from logflume.sql.rights import RightsRefused

BAD_REQUEST, BAD_STATEMENT, QUERY_ENDPOINT, TOO_MANY_QUERIES = 40000, 40001, 40002, 40003
NOT_AUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ACCEPTABLE, TOO_LARGE = 40100, 40300, 40400, 40600, 41300
ASSERTION_FAILED, SERVER_ERROR, COMMAND_AWAITED, NOT_READY = 41700, 50000, 50301, 50302
SHUTTING_DOWN, TERMINATED = 50303, 50304
RIGHTS_REFUSED = 40301


@dataclass(slots=True)
class RestError(Exception):
    """A request is refused. `statement`: the one at fault; `entities`: of those that were done before it."""

    code: int
    message: str
    statement: str | None = None
    entities: tuple[Any, ...] = ()

    @property
    def status(self) -> int:
        return self.code // 100

    def body(self) -> dict[str, Any]:
        if self.statement is None:
            return {"@type": "generic_error", "error_code": self.code, "message": self.message}
        return {
            "@type": "statement_error",
            "error_code": self.code,
            "message": self.message,
            "statementText": self.statement,
            "entities": list(self.entities),
        }


def as_rest_error(error: BaseException, statement: str | None = None, entities: tuple[Any, ...] = ()) -> RestError:
    """Return what the client is told of an error: the user's mistakes in full, what is the server's with its cause."""
    match error:
        case RestError():
            return error
        case StateUnavailable() | TransportError():
            return RestError(NOT_READY, str(error), statement, entities)
        case AssertionRefused():
            return RestError(ASSERTION_FAILED, str(error), statement, entities)
        case RightsRefused():
            return RestError(RIGHTS_REFUSED, str(error), statement, entities)
        case StatementError() | SqlError():
            return RestError(BAD_STATEMENT, str(error), statement, entities)
        case LogflumeError():
            return RestError(SERVER_ERROR, str(error), statement, entities)
        case RecursionError():
            return RestError(BAD_STATEMENT, "the statement is nested too deeply", statement, entities)
    raise error
