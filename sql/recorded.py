"""What decides the meaning of a planned query, as data that the command log keeps beside its text.

A statement is planned when it is made. What it was planned as (columns, formats, topics, stores and what their entries mean) is
written down, and whoever runs the query later, after a restart or in another worker, must plan the same: else it would take one
state for another, so it does not run and says what differs.
"""

from __future__ import annotations

import msgspec

from logflume.log.schemas import Column, FormatSpec
from logflume.streams.seams import Plan, changelog_topic

from .errors import SqlError
from .planner import PlannedQuery
from .types import show_type

VERSION = 1


class PlanChanged(SqlError):
    """This version plans a query otherwise than the one that made it."""

    code = "SQL_PLAN_CHANGED"


class RecordedPlan(msgspec.Struct, frozen=True):
    """See the module. Columns are `name TYPE`; `stores`: name -> key, window, state columns and what they mean."""

    query_id: str
    sink: str
    key: tuple[str, ...]
    value: tuple[str, ...]
    key_format: str
    value_format: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stores: dict[str, str]
    v: int = VERSION


def recorded_plan(planned: PlannedQuery, compiled: Plan) -> RecordedPlan:
    """Return what is to be written down of a query. Topics of its own are named without its application, as are stores."""
    output = planned.plan.output
    assert output is not None, "a persistent query writes to a topic"
    own = f"{compiled.application}-"
    subs = compiled.subtopologies
    return RecordedPlan(
        planned.query.id,
        output.topic,
        _columns(output.key),
        _columns(output.value),
        _format(output.key_format),
        _format(output.value_format),
        tuple(sorted({topic.removeprefix(own) for sub in subs for topic in sub.program.sources.values()})),
        tuple(sorted({out.topic.removeprefix(own) for sub in subs for out in sub.outputs.values()})),
        {
            spec.name: f"key ({', '.join(_columns(spec.key))}); state ({', '.join(_columns(spec.columns))}); "
            f"window {spec.window}; means {sub.contents.get(spec.name, '')}"
            for sub in subs
            for spec in sub.program.stores
        },
    )


def own_topics(recorded: RecordedPlan, application: str) -> frozenset[str]:
    """Return the internal topics that a query of this plan may have had made, under its application's name."""
    repartitions = {f"{application}-{topic}" for topic in recorded.writes if topic != recorded.sink}
    return frozenset(repartitions | {changelog_topic(application, store) for store in recorded.stores})


def check_same(recorded: RecordedPlan, now: RecordedPlan) -> None:
    """Refuse a query that is planned otherwise now.

    Raises:
        PlanChanged: naming the first difference.
    """
    for name in RecordedPlan.__struct_fields__:
        before, after = getattr(recorded, name), getattr(now, name)
        if before != after:
            raise PlanChanged(
                f"query {recorded.query_id} was made with {name.replace('_', ' ')} {before}, this version of logflume plans "
                f"{after}: its state would be taken for another. Run the version that made it, or DROP and create it again"
            )


def _columns(columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(f"{c.name} {show_type(c.type)}" for c in columns)


def _format(spec: FormatSpec) -> str:
    parts = [
        spec.name,
        "" if spec.is_wrapped else "bare",
        spec.delimiter if spec.name == "DELIMITED" else "",
        spec.full_name or "",
    ]
    return " ".join(part for part in parts if part)
