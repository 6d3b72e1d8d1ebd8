"""Push queries that go on where an earlier one ended: a token says up to which row of which record rows were given.

Only queries over one stream that keep nothing can: each of their rows comes from one record, which always gives the same rows.
A token is an answer of ours that comes back from outside: it is bounded, and checked like any other input.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from logflume.log import TopicPartition
from logflume.log.interfaces import Log
from logflume.log.schemas import BIGINT, INTEGER
from logflume.streams import expr as x

from . import plan as p
from .errors import StatementError

TOKEN_CHARACTERS_MAX = 1_000_000
_PLACE = (
    ("KSQL_ROWPARTITION", x.ColumnRef(x.Side.META, x.Meta.ROWPARTITION.value, INTEGER)),
    ("KSQL_ROWOFFSET", x.ColumnRef(x.Side.META, x.Meta.ROWOFFSET.value, BIGINT)),
)
Place = tuple[int, int]
"""The offset of a record, and how many of its rows were given."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """That a query tells tokens. `query`: its canonical text; `token`: the one behind which it goes on, "" for none."""

    query: str
    token: str = ""


class _Token(msgspec.Struct, frozen=True):
    query: str
    at: dict[int, Place]


_decode_token = msgspec.json.Decoder(_Token).decode


class Places:
    """Where rows come from that are given, one reader at a time. A row that was given before is left out."""

    def __init__(self, digest: str, at: Mapping[int, Place]) -> None:
        self._digest, self._at = digest, dict(at)
        self._last: dict[int, Place] = {}

    def is_new(self, partition: int, offset: int) -> bool:
        """Take the next row of a partition; False: it was given before."""
        last, count = self._last.get(partition, (-1, 0))
        self._last[partition] = here = (offset, count + 1 if offset == last else 1)
        if here <= self._at.get(partition, (-1, 0)):
            return False
        self._at[partition] = here
        return True

    def starts(self, topic: str) -> dict[TopicPartition, int]:
        """Return the offsets of the records behind which rows are new, by partition."""
        return {TopicPartition(topic, number): offset for number, (offset, _) in self._at.items()}

    def token(self) -> str:
        """Return what a later query needs to go on behind the rows that were given."""
        return base64.urlsafe_b64encode(msgspec.json.encode(_Token(self._digest, self._at))).decode()


def with_places(plan: p.QueryPlan) -> p.QueryPlan:
    """Return a plan whose rows end with partition and offset of their record.

    Raises:
        StatementError: its rows do not come from one record each.
    """
    scans = [o for o in p.operators(plan.root) if isinstance(o, p.Scan)]
    keeps_nothing = all(isinstance(o, p.Scan | p.Filter | p.Select | p.Explode) for o in p.operators(plan.root))
    if len(scans) != 1 or not keeps_nothing or plan.kind is not p.ResultKind.STREAM:
        raise StatementError(
            "continuation tokens are for queries over one stream without joins, aggregates and PARTITION BY: others keep a "
            "state, which a token does not hold"
        )
    columns = tuple((c.name, x.ColumnRef(x.Side.VALUE, c.name, c.type)) for c in plan.value)
    return replace(plan, root=p.Select(plan.root, (*columns, *_PLACE), "PLACE"))


def places_of(topic: str, tokens: Tokens, log: Log, *, offset_reset: str) -> Places:
    """Return where a query starts: behind what a token says, else at the end or the start of its topic.

    Raises:
        StatementError: it is no token, of another query, or what it points to is gone.
    """
    digest = hashlib.sha256(f"{topic} {tokens.query}".encode()).hexdigest()[:16]
    admin = log.admin()
    (described,) = admin.describe_topics([topic]).values()
    partitions = [TopicPartition(topic, number) for number in range(described.partitions)]
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    if not tokens.token:
        chosen = ends if offset_reset == "latest" else starts
        return Places(digest, {each.partition: (offset, 0) for each, offset in chosen.items()})
    found = _decoded(tokens.token)
    if found.query != digest:
        raise StatementError("the continuation token is of another query; send the query that it was given for")
    at = {each.partition: found.at.get(each.partition, (starts[each], 0)) for each in partitions}
    for each in partitions:
        offset, _ = at[each.partition]
        if not starts[each] <= offset <= ends[each]:
            raise StatementError(
                f"the continuation token goes on at offset {offset} of {topic}-{each.partition}, which has {starts[each]} to "
                f"{ends[each]}: what lies between is gone; start anew without it"
            )
    return Places(digest, at)


def _decoded(token: str) -> _Token:
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise StatementError(f"a continuation token has at most {TOKEN_CHARACTERS_MAX:,} characters, found {len(token):,}")
    try:
        return _decode_token(base64.urlsafe_b64decode(token))
    except ValueError as error:
        raise StatementError(f"not a continuation token ({error}); send one as an answer gave it") from None
