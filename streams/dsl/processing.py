"""Processors in a topology."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, Column

from .. import graph as g
from ..graph import ProcessorStore as ProcessorStore
from ..processors import Processor
from .naming import slug
from .schemas import key_columns
from .stream import Stream
from .windows import Duration, milliseconds


def key_value_store(name: str, *, key: Any = str, value: Any = None) -> g.KeyValueStore:
    """A store for a processor: values of any kind (None deletes) by keys of one type.

    `value`: the class of the values, if they are objects of one (a dataclass, msgspec.Struct, NamedTuple, Pydantic model, Enum).
    """
    return g.KeyValueStore(name, *_types(name, key, value))


def window_store(name: str, retention: Duration, *, key: Any = str, value: Any = None) -> g.WindowStore:
    """A store for a processor: values by key and a window's start, for `retention` behind stream time.

    It has `put(key, value, start_ms)`, `get(key, start_ms)`, `windows(key, from_ms, to_ms)` and `items(from_ms, to_ms)`.
    """
    return g.WindowStore(name, *_types(name, key, value), _positive(name, "retention", retention))


def session_store(name: str, retention: Duration, *, key: Any = str, value: Any = None) -> g.SessionStore:
    """A store for a processor: values by key and session (start and end, both inclusive), for `retention` behind its end.

    It has `put(key, value, start_ms, end_ms)`, `get(key, start_ms, end_ms)`, `sessions(key, from_ms, to_ms)` and `items()`.
    """
    return g.SessionStore(name, *_types(name, key, value), _positive(name, "retention", retention))


def versioned_store(name: str, history: Duration, *, key: Any = str, value: Any = None) -> g.VersionedStore:
    """A store for a processor: values by key as of any time, back to `history` behind stream time.

    It has `put(key, value, timestamp_ms)`, `get(key, as_of=None)`, `versions(key)` and `items()`.
    """
    return g.VersionedStore(name, *_types(name, key, value), _positive(name, "history", history))


def _types(name: str, key: Any, value: Any) -> tuple[Column, tuple[Any, ...]]:
    columns = key_columns(key)
    if len(columns) != 1:
        raise InvalidInput(f"store {name!r} needs one type of key, str or int for example, found {key!r}")
    return columns[0], () if value is None else (value,)


def _positive(name: str, what: str, duration: Duration) -> int:
    found = milliseconds(duration)
    if found < 1:
        raise InvalidInput(f"store {name!r} needs {what}=lf.hours(1), a time above 0, found {duration!r}")
    return found


def processed(
    stream: Stream,
    make: Callable[[], Processor],
    stores: tuple[ProcessorStore, ...],
    key: Any,
    name: str | None,
    children: Sequence[str],
    *,
    is_keyed: bool,
) -> list[Stream]:
    """Add a processor; return what comes out of it, and then what each of its children is given."""
    if not callable(make) or isinstance(make, Processor):
        raise InvalidInput(f"process() takes a class or a function that makes a processor for each task, found {make!r}")
    if inspect.isabstract(make):
        raise InvalidInput(f"{make.__name__} takes no records: define process(self, record)")
    for store in stores:
        if not isinstance(store, ProcessorStore):
            raise InvalidInput(f"process() takes stores as lf.key_value_store('name'), found {store!r}")
    if isinstance(children, str) or len(set(children)) != len(children) or not all(isinstance(c, str) and c for c in children):
        raise InvalidInput(f"process(..., children=['good', 'bad']) takes names, each once, found {children!r}")
    base = name or stream.graph.free(f"{stream.base}-{slug(getattr(make, '__name__', type(make).__name__))}")
    schema = replace(stream.schema, value=(Column("value", ANY),), value_class=None)
    if not is_keyed:
        schema = replace(schema, key=(Column("key", ANY),) if key is None else key_columns(key), window=None)
    node = g.Process(
        name=base, schema=schema, kind=g.EdgeKind.STREAM, inputs=(stream.node.name,), make=make, stores=stores, is_keyed=is_keyed,
        children=tuple(children),
    )  # fmt: skip
    made = Stream(stream.graph, stream.graph.add(node, fix="pass name='...'"), name or stream.base)
    return [made, *(_child(made, each) for each in node.children)]


def _child(made: Stream, child: str) -> Stream:
    name = f"{made.node.name}-{slug(child)}"
    node = g.Child(name=name, schema=made.schema, kind=g.EdgeKind.STREAM, inputs=(made.node.name,), child=child)
    return Stream(made.graph, made.graph.add(node, fix="name the children in another way"), name)
