"""Plain callables as aggregate functions: a fold from an initial value, and a reducer of the values themselves."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import ANY, Column

from ..graph import Aggregator
from .aggregate import State, first


def fold(
    init: Any,
    add: Callable[..., Any],
    *,
    merge: Callable[[Any, Any], Any] | None = None,
    subtract: Callable[..., Any] | None = None,
) -> Aggregator:
    """An arbitrary aggregate: `add(aggregate, *args)` from `init` (a value, or a callable giving a fresh one).

    A result of None deletes the aggregate; the next record starts from `init` again. `merge` combines two partial aggregates,
    `subtract(aggregate, *args)` takes out again what was added (aggregates of tables).
    """
    return Aggregator(
        "aggregate", ANY, (Column("state", ANY),), (None,), Fold(init, add), first,
        merge=None if merge is None else MergeObjects(merge), undo=None if subtract is None else Fold(init, subtract),
        start=Start(init), skips_null=False, classes=(*_classes_of_init(init), *_returned(add, merge)),
    )  # fmt: skip


def reduction(function: Callable[..., Any], *, subtract: Callable[..., Any] | None = None) -> Aggregator:
    """A reducer: the first value is the aggregate, then `function(aggregate, value)`; `subtract` takes a value out again."""
    return Aggregator(
        "reduce", ANY, (Column("state", ANY),), (None,), Reduce(function), first, merge=MergeObjects(function),
        undo=None if subtract is None else Reduce(subtract), skips_null=False, classes=_returned(function),
    )  # fmt: skip


def _classes_of_init(init: Any) -> tuple[Any, ...]:
    """Return the class of what an aggregate begins with; a function that cannot be called yet tells nothing."""
    if isinstance(init, type):
        return (init,)
    try:
        return (type(Start(init)()[0]),)
    except Exception:  # noqa: BLE001
        return ()


def _returned(*functions: Callable[..., Any] | None) -> tuple[Any, ...]:
    """Return the annotated results of functions."""
    hints = []
    for function in functions:
        if function is not None:
            try:
                hints.append(typing.get_type_hints(function).get("return"))
            except (NameError, TypeError, AttributeError):
                continue
    return tuple(hint for hint in hints if hint is not None)


@dataclass(frozen=True, slots=True)
class Start:
    """A state of one object that nothing has been added to."""

    init: Any

    def __call__(self) -> State:
        return (_fresh(self.init),)


def _fresh(init: Any) -> Any:
    """Return an aggregate that nothing has been added to."""
    if type(init) in _COPIED_SOONER:
        return init.copy()
    return init() if callable(init) else copy.copy(init)


_COPIED_SOONER = frozenset((dict, list, set))


@lru_cache(maxsize=1024)
def is_sized(kind: type[Any]) -> bool:
    """Return whether objects of a class have a length. Kept by class: to ask the abstract one costs more than most callables."""
    return issubclass(kind, Sized)


def size_of(aggregate: Any) -> int:
    """Return how many items an aggregate has, 0 for one without a length."""
    return len(aggregate) if is_sized(type(aggregate)) else 0  # type: ignore[arg-type]  # mypy takes type[Any] for unhashable


@dataclass(frozen=True, slots=True)
class Fold:
    """A plain `add(aggregate, *args)` over a state of one object."""

    init: Any
    add: Callable[..., Any]

    def start(self) -> Any:
        """Return an aggregate that nothing has been added to."""
        return _fresh(self.init)

    def refuse_emptied(self, aggregate: Any, size: int) -> None:
        """Raise InvalidInput where `add` returned None for an aggregate that had another size (0: it has none) before."""
        if size_of(aggregate) != size:
            raise InvalidInput(
                "the function changed the aggregate in place and returned None, which would delete it: return the aggregate"
            )

    def __call__(self, state: State, *args: Any) -> State:
        current = self.start() if state[0] is None else state[0]
        size = size_of(current)
        result = self.add(current, *args)
        if result is None:
            self.refuse_emptied(current, size)
        return (result,)


@dataclass(frozen=True, slots=True)
class Reduce:
    """A plain `function(aggregate, value)` over a state of one object, the first value unchanged."""

    function: Callable[..., Any]

    def __call__(self, state: State, value: Any) -> State:
        return (value,) if state[0] is None else (self.function(state[0], value),)


@dataclass(frozen=True, slots=True)
class MergeObjects:
    """A plain merge of two aggregates, None being the empty one."""

    function: Callable[[Any, Any], Any]

    def __call__(self, left: State, right: State) -> State:
        if left[0] is None or right[0] is None:
            return right if left[0] is None else left
        return (self.function(left[0], right[0]),)
