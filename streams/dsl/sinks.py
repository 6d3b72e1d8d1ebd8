"""Where records go: one topic, or the topic that each record says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logflume.log import InvalidInput, UnknownName, topic_config_names
from logflume.log.schemas import ANY, STRING, FormatSpec, format_of

from .. import graph as g
from .binding import Scope, bind
from .calling import Function, call
from .fields import Field, Value
from .naming import Graph
from .schemas import key_format, value_format


def sink(
    graph: Graph,
    node: g.Node,
    topic: str | Value | Function,
    topics: Sequence[str],
    format: str | FormatSpec | None,
    key_format_name: str | FormatSpec | None,
    partitions: int | None,
    configs: Mapping[str, str],
) -> None:
    """Add a sink. Config names may use `_` for `.`."""
    schema = node.schema
    check_partitions(partitions)
    for name, value in configs.items():
        _check_config(name, value)
    settings: dict[str, Any] = {
        "partitions": partitions, "topic_configs": {name.replace("_", "."): value for name, value in configs.items()},
        "schema": schema, "kind": node.kind, "inputs": (node.name,),
    }  # fmt: skip
    if not isinstance(topic, str):
        graph.add(_route(graph, node, topic, topics, format, key_format_name, settings), fix="give it other topics")
        return
    if topics:
        raise InvalidInput(f"to({topic!r}, topics=...): a list of topics is for a computed one, to(lambda value: ...)")
    added = g.Sink(
        name=graph.free(f"{topic}-sink" if topic in graph.nodes else topic), topic=topic,
        key_format=sink_key_format(graph, node, key_format_name, topic),
        value_format=value_format(schema, format, topic, graph.registry), **settings,
    )  # fmt: skip
    graph.add(added, fix="pass name='...'")


def _check_config(name: str, value: object) -> None:
    """Refuse what is neither an argument of `to` nor a config of topics."""
    known = topic_config_names()
    if name.replace("_", ".") not in known:
        arguments = ("topics", "format", "key_format", "partitions")
        raise UnknownName("argument of to()", name, [*arguments, *(each.replace(".", "_") for each in known)])
    if not isinstance(value, str):
        raise InvalidInput(f"{name}= of to() is text, as the broker takes it: {name}={str(value)!r}, found {value!r:.60}")


def check_partitions(partitions: int | None) -> None:
    """Refuse what is no number of partitions."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise InvalidInput(f"partitions= is a whole number of at least 1, found {partitions!r}")


def sink_key_format(graph: Graph, node: g.Node, name: str | FormatSpec | None, topic: str) -> FormatSpec:
    """Return how the keys of a topic are written: as named; what a function gave as text, which `stream(key=str)` reads."""
    key = node.schema.key
    if name is None and len(key) == 1 and key[0].type == ANY and _is_made(graph, node):
        return FormatSpec("TEXT", is_wrapped=False)
    return key_format(key, name, topic, graph.registry)


def _is_made(graph: Graph, node: g.Node) -> bool:
    """Return whether the keys are not those of a topic that was read."""
    while node.inputs and not isinstance(node, g.Rekey | g.Regroup):
        if isinstance(node, g.Process) and not node.is_keyed:
            return True
        node = graph.nodes[node.inputs[-1] if isinstance(node, g.Resolve) else node.inputs[0]]
    return bool(node.inputs)


def _route(
    graph: Graph, node: g.Node, topic: Value | Function, topics: Sequence[str], format: str | FormatSpec | None,
    key_format_name: str | FormatSpec | None, settings: Mapping[str, Any],
) -> g.Route:  # fmt: skip
    schema = node.schema
    if isinstance(topics, str):
        raise InvalidInput(f"to(..., topics=...): expected a list of topics, found the text {topics!r}")
    if isinstance(topic, Value):
        topic_of = bind(topic, Scope(schema, f"{node.name!r}"))
        if topic_of.type not in (STRING, ANY):
            raise InvalidInput(f"to(): `{topic!r}` is {topic_of.type}, expected the name of a topic (STRING): cast(str)")
    elif callable(topic):
        topic_of = call(topic, "to()")
    else:
        raise InvalidInput(f"to() takes a topic, a column expression or a function that gives one, found {topic!r:.100}")
    found = {"key": sink_key_format(graph, node, key_format_name, ""), "value": value_format(schema, format, "", "")}
    for side, spec in found.items():
        if format_of(spec.name).schemas is not None:
            raise InvalidInput(f"the schema of {spec.name} {side}s is registered by topic: a computed one takes JSON, KAFKA ...")
    name = topic.name if isinstance(topic, Field) else "topic"
    return g.Route(
        name=graph.free(f"{node.name}-to-{name}"), topic_of=topic_of, topics=tuple(dict.fromkeys(topics)),
        key_format=found["key"], value_format=found["value"], **settings,
    )  # fmt: skip
