"""Loads what the first statements of a server need before somebody waits for it: the parser, the planner, the state's library."""

from __future__ import annotations

import importlib

from logflume.streams import plan
from logflume.streams.seams import Plan

from .binding.context import Context
from .catalog import Catalog
from .definitions import apply_definition
from .parser import parse_statement
from .planner import plan_query

_SOURCE = "CREATE STREAM A (K STRING KEY, V INT) WITH (KAFKA_TOPIC='a', VALUE_FORMAT='JSON')"
_QUERIES = (
    "CREATE STREAM B AS SELECT K, V + 1 AS V FROM A WHERE V > 0",
    "CREATE TABLE C AS SELECT K, COUNT(*) AS N FROM A GROUP BY K",
    "SELECT K, V FROM A EMIT CHANGES",
)


def warm_up() -> list[Plan]:
    """Plan and compile queries over a catalog of their own, as a first statement would; nothing is started or kept."""
    importlib.import_module("rocksdict")
    catalog = apply_definition(parse_statement(_SOURCE), Context(Catalog()))
    return [plan(plan_query(text, catalog)) for text in _QUERIES]
