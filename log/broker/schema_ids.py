"""Topics that demand registered schemas (`confluent.key.schema.validation`, `confluent.value.schema.validation`): of each key or
value only its schema id is looked at, and the registry is asked whether the topic's subject has it.

The id stands before the payload (a zero and 4 bytes) or as a GUID in the headers `__key_schema_id` and `__value_schema_id`. Null
keys and values pass. What was answered is remembered: yes for an hour, no for some seconds, for it may be registered meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from logflume.log.batch import BatchHeader
from logflume.log.batch.header import Buffer
from logflume.log.batch.records import iter_spans, read_header_list, records_section
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError

from .incoming import RowsRefused
from .ports import GUID_BYTES, Clock, Demand, Offload, SchemaFinder, SchemaRef
from .replies import Reply

KEPT_ANSWERS = 10_000
IDS_AT_A_TIME = 64
"""A batch may bring so many ids of which nothing is known."""
_YES_MS, _NO_MS, _AWAY_MS = 3_600_000, 5_000, 1_000
VALIDATIONS = ("confluent.key.schema.validation", "confluent.value.schema.validation")
_STRATEGIES = "io.confluent.kafka.serializers.subject."
_ID_BYTES = 5
_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}


_Asked = tuple[Demand, SchemaRef]
Found = Mapping[_Asked, int]
"""The schemas that a batch names, each with the first row that does."""


def demands_of(topic: str, configs: Callable[[str], str]) -> tuple[Demand, ...]:
    """Return what the settings of a topic demand."""
    return tuple(
        Demand(side, topic, configs(f"confluent.{side}.subject.name.strategy").removeprefix(_STRATEGIES))
        for side in ("key", "value")
        if configs(f"confluent.{side}.schema.validation") == "true"
    )


def find_schemas(batch: Buffer, header: BatchHeader, demands: tuple[Demand, ...], *, max_bytes: int) -> Found:
    """Return the schemas that a sound batch names.

    Raises:
        RowsRefused: a record names none.
    """
    data = bytes(records_section(batch, 0, header, max_decompressed_bytes=max_bytes))
    found: dict[_Asked, int] = {}
    bad: list[int] = []
    for row, span in enumerate(iter_spans(data, header)):
        headers = read_header_list(data, span.header_start, span.header_count, len(data))[0] if span.header_count else ()
        for demand in demands:
            start, size = (span.key_start, span.key_size) if demand.side == "key" else (span.value_start, span.value_size)
            if size < 0:
                continue
            told = next((value for name, value in reversed(headers) if name == _HEADERS[demand.side]), None)
            ref = _ref(data[start : start + min(size, _ID_BYTES)] if told is None else told)
            if ref is None:
                bad.append(row)
            else:
                found.setdefault((demand, ref), row)
    if bad:
        raise RowsRefused(sorted(set(bad)), "this topic takes records with a registered schema alone", "no schema id")
    return found


def _ref(data: bytes) -> SchemaRef | None:
    if data[:1] == b"\x00" and len(data) >= _ID_BYTES:
        return SchemaRef(bytes(data[:_ID_BYTES]))
    if data[:1] == b"\x01" and len(data) >= GUID_BYTES:
        return SchemaRef(bytes(data[:GUID_BYTES]))
    return None


class SchemaJudge:
    """Says whether schemas are what topics demand. The registry is asked in `offload`, and no more often than once a second
    while it does not answer."""

    def __init__(self, finder: Callable[[], SchemaFinder] | None, *, clock: Clock, offload: Offload) -> None:
        """`finder`: makes what asks the registry, in `offload`; None: there is none."""
        self._finder, self._clock, self.offload = finder, clock, offload
        self._made: SchemaFinder | None = None
        self._answers: OrderedDict[_Asked, tuple[bool, int]] = OrderedDict()
        self._away: tuple[int, str] = (0, "")

    @property
    def has_registry(self) -> bool:
        return self._finder is not None

    def judge(self, found: Found) -> Reply:
        """Return a reply: None where everything is in order, else the LogflumeError to answer."""
        answers = {each: self._answer(each) for each in found}
        unknown = [each for each, answer in answers.items() if answer is None]
        if not unknown:
            return Reply.of(_verdict(found, answers))
        if self._finder is None:
            text = "topics that demand schemas need the broker's confluent.schema.registry.url"
            return Reply.of(KafkaError(ErrorCode.INVALID_CONFIG, text))
        if len(unknown) > IDS_AT_A_TIME:
            rows = sorted({found[each] for each in unknown[IDS_AT_A_TIME:]})
            why = f"a batch brings at most {IDS_AT_A_TIME} schema ids that are new"
            return Reply.of(RowsRefused(rows, why, "a new schema id"))
        until_ms, why = self._away
        if self._clock.monotonic_ms() < until_ms:
            return Reply.of(_away(why))
        judged = Reply()

        def take(told: list[bool] | Exception) -> None:
            if isinstance(told, Exception):
                judged.set(self._note_away(str(told)))
                return
            self._remember(unknown, told)
            judged.set(_verdict(found, answers | dict(zip(unknown, told, strict=True))))

        self.offload(lambda: self._ask(unknown)).then(take)
        return judged

    def _ask(self, unknown: Sequence[_Asked]) -> list[bool]:
        """Ask the registry; in `offload`."""
        assert self._finder is not None
        if self._made is None:
            self._made = self._finder()
        return [self._made.is_met(demand, ref) for demand, ref in unknown]

    def _note_away(self, why: str) -> KafkaError:
        self._away = (self._clock.monotonic_ms() + _AWAY_MS, why)
        return _away(why)

    def _remember(self, asked: Sequence[_Asked], told: Sequence[bool]) -> None:
        now_ms = self._clock.monotonic_ms()
        for each, is_met in zip(asked, told, strict=True):
            self._answers[each] = (is_met, now_ms + (_YES_MS if is_met else _NO_MS))
        while len(self._answers) > KEPT_ANSWERS:
            self._answers.popitem(last=False)

    def _answer(self, each: _Asked) -> bool | None:
        known = self._answers.get(each)
        return None if known is None or known[1] <= self._clock.monotonic_ms() else known[0]


def _verdict(found: Found, answers: Mapping[_Asked, bool | None]) -> LogflumeError | None:
    wrong = {each: row for each, row in found.items() if not answers[each]}
    if not wrong:
        return None
    (demand, ref), row = min(wrong.items(), key=lambda item: item[1])
    text = (
        f"record {row}: the {demand.side}'s schema, {ref}, is of no subject that topic {demand.topic} takes ({demand.strategy})"
    )
    return RowsRefused(sorted(set(wrong.values())), text, "its schema is not of the topic's subject")


def _away(why: str) -> KafkaError:
    """Return an error that clients retry: nothing is known of the schemas yet."""
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the schemas of this topic cannot be checked now: {why}")
