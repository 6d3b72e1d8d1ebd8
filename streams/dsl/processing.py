"""Processors in a topology."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, Column

from .. import graph as g
from ..graph import KeyValueStore as KeyValueStore
from ..processors import Processor
from .naming import slug
from .schemas import key_columns
from .stream import Stream


def key_value_store(name: str, *, key: Any = str, value: Any = None) -> KeyValueStore:
    """A store for a processor: values of any kind (None deletes) by keys of one type.

    `value`: the class of the values, if they are objects of one (a dataclass, msgspec.Struct, NamedTuple, Pydantic model, Enum).
    """
    columns = key_columns(key)
    if len(columns) != 1:
        raise InvalidInput(f"store {name!r} needs one type of key, str or int for example, found {key!r}")
    return KeyValueStore(name, columns[0], () if value is None else (value,))


def processed(
    stream: Stream,
    make: Callable[[], Processor],
    stores: tuple[KeyValueStore, ...],
    key: Any,
    name: str | None,
    *,
    is_keyed: bool,
) -> Stream:
    """Add a processor."""
    if not callable(make) or isinstance(make, Processor):
        raise InvalidInput(f"process() takes a class or a function that makes a processor for each task, found {make!r}")
    if inspect.isabstract(make):
        raise InvalidInput(f"{make.__name__} takes no records: define process(self, record)")
    for store in stores:
        if not isinstance(store, KeyValueStore):
            raise InvalidInput(f"process() takes stores as lf.key_value_store('name'), found {store!r}")
    base = name or stream.graph.free(f"{stream.base}-{slug(getattr(make, '__name__', type(make).__name__))}")
    schema = replace(stream.schema, value=(Column("value", ANY),), value_class=None)
    if not is_keyed:
        schema = replace(schema, key=(Column("key", ANY),) if key is None else key_columns(key), window=None)
    node = g.Process(
        name=base, schema=schema, kind=g.EdgeKind.STREAM, inputs=(stream.node.name,), make=make, stores=stores, is_keyed=is_keyed
    )
    return Stream(stream.graph, stream.graph.add(node, fix="pass name='...'"), name or stream.base)
