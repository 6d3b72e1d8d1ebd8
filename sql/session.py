"""What belongs to one user of an engine or server: properties, variables, rights; and the statements that change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from logflume.log.registry import EVERYTHING, Rights

from . import ast
from .errors import NotSupported, StatementError, for_tests_only
from .properties import check_property
from .results import Message, Result


@dataclass(slots=True)
class Session:
    """What SET and DEFINE change, for one user; what the user may do, and can look at.

    Attributes:
        rows_max: more rows of a query that ends are not asked for: a screen holds no more.
        on_read: told how many of how many records such a query has read.
        reads_until_s: by the monotonic clock, until when new queries are waited for in all; None: `first_read.LIMIT_S` each.
    """

    properties: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    rights: Rights = EVERYTHING
    rows_max: int | None = None
    on_read: Callable[[int, int], object] | None = None
    reads_until_s: float | None = None


def session_statement(statement: ast.Statement, user: Session) -> Result:
    """Do what changes a session alone. Raises StatementError: it cannot be, or is of no session."""
    match statement:
        case ast.SetProperty(name, value):
            check_property(name, value, statement.span)
            user.properties[name] = value
            return Message(
                f"Successfully changed local property '{name}' to '{value}'. Use the UNSET command to revert your change."
            )
        case ast.UnsetProperty(name):
            check_property(name, None, statement.span)
            return Message(f"Successfully unset local property '{name}' (value was {user.properties.pop(name, None)!r}).")
        case ast.Define(name, value):
            user.variables[name] = value
            return Message(f"{name} = {value!r}")
        case ast.Undefine(name):
            if name not in user.variables:
                raise StatementError(f"Cannot undefine variable '{name}' which was never defined", statement.span)
            del user.variables[name]
            return Message(f"{name} is not defined any more")
        case ast.AssertInTest(what):
            raise for_tests_only(what, statement.span)
        case ast.RunScript():
            raise StatementError("RUN SCRIPT reads files where the script that has it is; send the statements", statement.span)
    raise NotSupported(statement.__class__.__name__, statement.span)
