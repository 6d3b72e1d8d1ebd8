"""Joins of a table with the row of another that a foreign key names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import Json, Record, Row, StoredTable, Table, key_bytes
from .queues import Queue, Task
from .table_joins import Join


@dataclass(frozen=True, slots=True)
class Message:
    """What the left sends to a foreign key ("forget", "drop", "answer", "if_there"), or the right's row that comes back."""

    what: str
    key: Any
    left: Json
    right: Json = None


class ForeignKeyJoin:
    """Left changes subscribe to a foreign key, right changes answer the subscriptions; `table` has the results."""

    def __init__(
        self, task: Task, left: Table, right: Table, kind: str, to_foreign: Callable[[Any, Json], Any], join: Join,
        table: StoredTable,
    ) -> None:  # fmt: skip
        self.left, self.right, self.kind, self.to_foreign, self.join, self.table = left, right, kind, to_foreign, join, table
        for side in (left, right):
            side.need_rows()
            side.demand_old()
        self.subscribed: dict[Any, dict[Any, Json]] = {}
        self.subscriptions, self.responses = Queue(task), Queue(task)
        self.subscriptions.children.append(self._take_subscription)
        self.responses.children.append(self._take_response)

    def receive_left(self, r: Record) -> None:
        if not r.is_latest:
            return
        for what, foreign in self._messages(self._foreign(r.key, r.value), self._foreign(r.key, r.old), r):
            self.subscriptions.receive(Record(foreign, Message(what, r.key, r.value), r.ts))

    def _foreign(self, key: Any, value: Json) -> Any:
        return None if value is None else self.to_foreign(key, value)

    def _messages(self, new: Any, old: Any, r: Record) -> list[tuple[str, Any]]:
        if self.kind == "left":
            if r.value is None and r.old is None:
                return []
            return [("forget", old)] * (old is not None and old != new) + [("answer", new)]
        if new is None:
            return [] if old is None else [("drop", old)]
        if old is None or old == new:
            return [("if_there", new)]
        return [("forget", old), ("answer", new)]

    def _take_subscription(self, r: Record) -> None:
        message, foreign = r.value, r.key
        if message.what in ("forget", "drop"):
            self.subscribed.get(foreign, {}).pop(message.key, None)
        elif foreign is not None:
            self.subscribed.setdefault(foreign, {})[message.key] = message.left
        row = self.right.get(foreign) if foreign is not None else None
        ts = max(r.ts, row.ts) if row else r.ts
        if message.what == "drop":
            self._respond(message, None, ts)
        elif message.what == "answer" or (message.what == "if_there" and row is not None):
            self._respond(message, row, ts)

    def receive_right(self, r: Record) -> None:
        if not r.is_latest:
            return
        subscribed = self.subscribed.get(r.key, {})
        for key in sorted(subscribed, key=key_bytes):
            row = None if r.value is None else Row(r.value, r.ts)
            self._respond(Message("answer", key, subscribed[key]), row, r.ts)

    def _respond(self, message: Message, row: Row | None, ts: int) -> None:
        answer = Message(message.what, message.key, message.left, row.value if row else None)
        self.responses.receive(Record(message.key, answer, ts))

    def _take_response(self, r: Record) -> None:
        message = r.value
        row = self.left.get(r.key)
        current = row.value if row else None
        if current != message.left:
            return
        has_none = message.right is None and (self.kind == "inner" or current is None)
        self.table.receive(Record(r.key, None if has_none else self.join(r.key, current, message.right), r.ts))
