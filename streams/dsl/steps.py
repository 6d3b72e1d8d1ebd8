"""Which step of the DSL is missing, where what was asked for is a method of another one."""

from __future__ import annotations

from ..missing import missing


def missing_step(owner: object, called: str, name: str) -> AttributeError:
    """Return the error for a method that `owner`, a stream, a grouped stream or a table, does not have.

    >>> import logflume.streams as lf
    >>> lf.App("shop").stream("orders").count()
    Traceback (most recent call last):
    logflume.streams.missing.UnknownAttribute: unknown attribute 'count' of a stream; after group_by(...) or group_by_key() it ...
    """
    from .stream import Stream
    from .table import Grouped, Table

    ways = (
        (Grouped, "after group_by(...)" if isinstance(owner, Table) else "after group_by(...) or group_by_key()"),
        (Table, "after count(), aggregate(...) or reduce(...)" if isinstance(owner, Grouped) else "after to_table()"),
        (Stream, "after to_stream()" if isinstance(owner, Table) else "before group_by(...)"),
    )
    found = (way for each, way in ways if not isinstance(owner, each) and not name.startswith("_") and hasattr(each, name))
    way = next(found, None)
    return missing(called, name, dir(type(owner)), elsewhere="" if way is None else f"{way} it has it")
