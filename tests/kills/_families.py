"""The programs that are killed: one for each family of operators, in the DSL over objects and over columns, and in SQL."""

from __future__ import annotations

from functools import cache

import logflume.streams as lf
from logflume.streams.seams import Plan
from tests.kills._columns import COMPACTED, DSL, SQL, TOPICS_BETWEEN, sql_plan
from tests.streams import _family_apps as families
from tests.streams import _slice_apps as sliced
from tests.streams.test_operators_engine import APPS, THROUGH_TOPICS

SALES, REFUNDS = "sales", "refunds"
_OF_SALES = (*sliced.JOINS, *sliced.OTHERS, *families.TABLES, *families.STREAMS, *families.FOREIGN)
_OUT_OF_ORDER = ("joined-then-windowed", "left-then-windowed", "deduplicated")
"""With a short grace or none behind a topic in which the results of several tasks meet: what is late hangs on who came first."""
_BY_COMMIT = ("suppressed-then-summed", "floats-then-summed", "final-then-summed", "summed-and-then-summed")
"""Sums of floats over what leaves at task commits: when these are decides what is summed, or in which order."""
KINDS = {f"sales {kind}": kind for kind in _OF_SALES if kind not in (*_OUT_OF_ORDER, *_BY_COMMIT)}
GROUPS = {"objects": tuple(APPS), "columns": tuple(DSL), "sales": tuple(KINDS), "sql": tuple(SQL)}

_STREAMS_OF_SALES = ("inner", "left", "outer", "self", "looked-up", *families.STREAMS)
_TABLES_OF_SALES = tuple(name for name, kind in KINDS.items() if kind not in _STREAMS_OF_SALES)
LAST_COUNTS = (*THROUGH_TOPICS, *TOPICS_BETWEEN, *COMPACTED, *_TABLES_OF_SALES)
"""Those of which only the last value of each key is one: changes of several keys meet on their way, or the topic is compacted."""
ANY_ORDER = ("sales merged",)
"""Those whose results of one key come from several tasks: all are compared, in no order."""
COMING_AND_GOING = ("sales foreign-grouped",)
"""Those whose rows are in between in groups that hang on when answers come: one that counts no rows is as one that never was."""
FEW_KEYS = (
    *("processor", "totals of a processor", "ticking", "expiring", "sales processor", "foreign columns", "foreign keys"),
    *(name for name, kind in KINDS.items() if kind in families.FOREIGN),
)
"""Those that go through all keys again and again, or answer all of them whenever a row of the other side changes."""


def slug(name: str) -> str:
    return name.replace(" ", "-")


def named(words: str) -> tuple[str, ...]:
    """Return the families of a group, those named (comma between), or all."""
    if words == "all":
        return tuple(name for group in GROUPS.values() for name in group)
    found = [name for word in words.split(",") for name in GROUPS.get(word, (word,))]
    unknown = [name for name in found if not any(name in group for group in GROUPS.values())]
    assert not unknown, f"no family {unknown}: groups are {list(GROUPS)}, families {GROUPS}"
    return tuple(found)


@cache
def plan_of(prefix: str, name: str) -> Plan:
    """Return the plan of a family's application."""
    application = f"{prefix}-{slug(name)}"
    if name in SQL:
        return sql_plan(application, name, f"{application}-out")
    if name in KINDS:
        module = sliced if KINDS[name] in sliced.JOINS + sliced.OTHERS else families
        return module.make_plan(application, KINDS[name], SALES, REFUNDS)
    app = lf.App(application)
    found = (APPS | DSL)[name](app)
    (found.to_stream() if isinstance(found, lf.Table) else found).to(f"{application}-out", partitions=1)
    return app.plan()
