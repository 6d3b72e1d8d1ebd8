"""Push queries that nobody watches any more, of servers that were killed: found by their names, told by their empty groups.

Nothing is recorded of a push query, so its application's name must say whose it is; no persistent query can have such a name.
"""

from __future__ import annotations

import re
import uuid
from functools import partial

from logflume.log import Admin

from .running import Left

LOOK_EVERY_S = 60.0
"""So long, too, is a query without members before it is taken for forsaken: one that starts has topics before it has members."""


def push_application(service: str) -> str:
    """Return a new name for the application of a push query: `<service>-push.0x<12 hexadecimal digits>`.

    An id that can be given has no dot, and the number behind that of a query that began anew is decimal (`application_id`).
    """
    return f"{service}-push.0x{uuid.uuid4().hex[:12]}"


class Forsaken:
    """The push queries of one service that nobody runs. `look` is due once in `LOOK_EVERY_S`, not at a start; not thread-safe."""

    def __init__(self, service: str) -> None:
        self._name = re.compile(rf"({re.escape(service)}-push\.0x[0-9a-f]{{12}})(-.+-(?:changelog|repartition))?")
        self._due_s: float | None = None
        self._empty: frozenset[str] = frozenset()

    def look(self, admin: Admin, now_s: float) -> list[Left]:
        """Return what those left that had no members when it was looked before, and have none now; none before it is due.

        Raises:
            LogflumeError: the log does not tell; it is looked again when the next look is due.
        """
        is_due = self._due_s is not None and now_s >= self._due_s
        if is_due or self._due_s is None:
            self._due_s = now_s + LOOK_EVERY_S
        if not is_due:
            return []
        topics: dict[str, set[str]] = {}
        groups = frozenset(each for each in admin.list_groups() if self._application(each) == each)
        for topic in admin.list_topics(include_internal=True):
            application = self._application(topic)
            if application is not None and application != topic:
                topics.setdefault(application, set()).add(topic)
        there = topics.keys() | groups
        empty = {each for each in there if each not in groups or not admin.describe_group(each).members}
        forsaken, self._empty = sorted(empty & self._empty), frozenset(empty)
        return [Left(each, each, partial(frozenset, topics.get(each, set()))) for each in forsaken]

    def _application(self, name: str) -> str | None:
        """Return the application that a group or an internal topic is of, if it is of one of these queries."""
        found = self._name.fullmatch(name)
        return None if found is None else found[1]
