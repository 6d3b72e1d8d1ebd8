"""What a user writes for an expression: `col.delay > 15`. Deferred objects without a schema; `bind` makes the typed tree of them.

Operators have Python's meaning with nulls: a comparison with null is False, arithmetic with null is null. `&`, `|` and `~` are
AND, OR and NOT (Python gives no way to overload the words).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput, UnknownName

from ..expr import BinaryOp, Meta, UnaryOp
from ..functions.scalar import Scalar
from ..missing import missing


class Value:
    """A deferred value. Compare, calculate and call its methods; nothing is computed before the topology runs.

    Every function of the library is a method too: `col.name.substring(2)`; `dir(col.name)` lists them.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        raise InvalidInput(
            f"`{self!r}` has no value yet: use & | ~ instead of and, or, not, each side in parentheses, "
            "(a > 1) & (b < 5), and between(a, b) for a < x < b"
        )

    def __iter__(self) -> Any:
        raise InvalidInput(f"`{self!r}` has no items yet")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return Binary(BinaryOp.EQ, self, lift(other))

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return Binary(BinaryOp.NE, self, lift(other))

    def __lt__(self, other: Any) -> Value:
        return Binary(BinaryOp.LT, self, lift(other))

    def __le__(self, other: Any) -> Value:
        return Binary(BinaryOp.LE, self, lift(other))

    def __gt__(self, other: Any) -> Value:
        return Binary(BinaryOp.GT, self, lift(other))

    def __ge__(self, other: Any) -> Value:
        return Binary(BinaryOp.GE, self, lift(other))

    def __add__(self, other: Any) -> Value:
        return Binary(BinaryOp.ADD, self, lift(other))

    def __radd__(self, other: Any) -> Value:
        return Binary(BinaryOp.ADD, lift(other), self)

    def __sub__(self, other: Any) -> Value:
        return Binary(BinaryOp.SUB, self, lift(other))

    def __rsub__(self, other: Any) -> Value:
        return Binary(BinaryOp.SUB, lift(other), self)

    def __mul__(self, other: Any) -> Value:
        return Binary(BinaryOp.MUL, self, lift(other))

    def __rmul__(self, other: Any) -> Value:
        return Binary(BinaryOp.MUL, lift(other), self)

    def __truediv__(self, other: Any) -> Value:
        return Binary(BinaryOp.TRUE_DIV, self, lift(other))

    def __rtruediv__(self, other: Any) -> Value:
        return Binary(BinaryOp.TRUE_DIV, lift(other), self)

    def __floordiv__(self, other: Any) -> Value:
        return Binary(BinaryOp.FLOOR_DIV, self, lift(other))

    def __rfloordiv__(self, other: Any) -> Value:
        return Binary(BinaryOp.FLOOR_DIV, lift(other), self)

    def __mod__(self, other: Any) -> Value:
        return Binary(BinaryOp.FLOOR_MOD, self, lift(other))

    def __rmod__(self, other: Any) -> Value:
        return Binary(BinaryOp.FLOOR_MOD, lift(other), self)

    def __and__(self, other: Any) -> Value:
        return Binary(BinaryOp.AND, self, lift(other))

    def __rand__(self, other: Any) -> Value:
        return Binary(BinaryOp.AND, lift(other), self)

    def __or__(self, other: Any) -> Value:
        return Binary(BinaryOp.OR, self, lift(other))

    def __ror__(self, other: Any) -> Value:
        return Binary(BinaryOp.OR, lift(other), self)

    def __neg__(self) -> Value:
        return Unary(UnaryOp.NEG, self)

    def __invert__(self) -> Value:
        return Unary(UnaryOp.NOT, self)

    def __getitem__(self, key: Any) -> Value:
        """A field of a nested object by name, an item of a map by key, of a list by position (from 0, or from the end)."""
        return Item(self, lift(key))

    def is_null(self) -> Value:
        """Whether it is null."""
        return Unary(UnaryOp.IS_NULL, self)

    def is_not_null(self) -> Value:
        """Whether it is not null."""
        return Unary(UnaryOp.IS_NOT_NULL, self)

    def is_distinct_from(self, other: Any) -> Value:
        """Whether the two differ, null being equal to null."""
        return Binary(BinaryOp.IS_DISTINCT, self, lift(other))

    def isin(self, values: Iterable[Any]) -> Value:
        """Whether it equals one of the values; null is in nothing."""
        found: Value = Constant(False)
        for i, value in enumerate(values):
            test = Binary(BinaryOp.EQ, self, lift(value))
            found = test if i == 0 else Binary(BinaryOp.OR, found, test)
        return found

    def between(self, low: Any, high: Any) -> Value:
        """Whether low <= it <= high."""
        return Binary(BinaryOp.AND, self >= lift(low), self <= lift(high))

    def cast(self, type: Any) -> Value:
        """Convert to a column type or to int, float, str or bool; what cannot be converted is null and counted."""
        return Converted(self, type)

    def fill_null(self, other: Any) -> Value:
        """It, or `other` where it is null."""
        return Choice(((self.is_not_null(), self),), lift(other))

    def __getattr__(self, name: str) -> Any:
        """A function of the library by its name (`col.name.substring(2)`), else a field of a nested object (`col.ship.city`)."""
        if name.startswith("_"):
            raise AttributeError(name)
        from .functions import method

        return method(self, name) or Item(self, Constant(name))

    def __dir__(self) -> list[str]:
        from .functions import scalars

        return sorted({*object.__dir__(self), *scalars()})

    def __call__(self, *args: Any) -> Value:
        from .functions import scalars

        name = self.key.value if isinstance(self, Item) and isinstance(self.key, Constant) else repr(self)
        raise UnknownName("function", str(name), scalars())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Field(Value):
    """A column by name; `side` "" for the stream at hand, "table" for the table of a join."""

    name: str
    side: str = ""

    def __repr__(self) -> str:
        prefix = "col" if not self.side else self.side
        return f"{prefix}.{self.name}" if self.name.isidentifier() else f"{prefix}[{self.name!r}]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MetaField(Value):
    """A pseudo-column: time, partition or offset of the record, bounds of its window."""

    meta: Meta

    def __repr__(self) -> str:
        return self.meta.value.lower()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Value):
    value: Any

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Value):
    op: UnaryOp
    operand: Value

    def __repr__(self) -> str:
        match self.op:
            case UnaryOp.NEG:
                return f"-{self.operand!r}"
            case UnaryOp.NOT:
                return f"~{self.operand!r}"
        return f"{self.operand!r}.{'is_null' if self.op is UnaryOp.IS_NULL else 'is_not_null'}()"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Value):
    op: BinaryOp
    left: Value
    right: Value

    def __repr__(self) -> str:
        symbol = {"=": "==", "<>": "!=", "true /": "/", "floor %": "%", "AND": "&", "OR": "|"}.get(self.op.value, self.op.value)
        return f"({self.left!r} {symbol} {self.right!r})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Item(Value):
    operand: Value
    key: Value

    def __repr__(self) -> str:
        return f"{self.operand!r}[{self.key!r}]"

    def __call__(self, *args: Any) -> Any:
        """A field is not called: its name was meant to be a function's."""
        from .functions import scalars

        name = str(self.key.value) if isinstance(self.key, Constant) else repr(self.key)
        raise missing(f"`{self.operand!r}`", name, {*object.__dir__(self), *scalars()})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Converted(Value):
    operand: Value
    type: Any

    def __repr__(self) -> str:
        return f"{self.operand!r}.cast({getattr(self.type, '__name__', self.type)})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Called(Value):
    """A function of the library; `name`: as the user wrote it."""

    function: Scalar
    name: str
    args: tuple[Value | Lambda, ...]

    def __repr__(self) -> str:
        at = self.function.subject % len(self.args) if self.args else 0
        if not self.args or not isinstance(self.args[at], Value) or isinstance(self.args[at], Constant):
            return f"functions.{self.name}({', '.join(map(repr, self.args))})"
        others = [*self.args[:at], *self.args[at + 1 :]]
        return f"{self.args[at]!r}.{self.name}({', '.join(map(repr, others))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Param(Value):
    """What a lambda is given."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Lambda:
    """A Python function as an argument of a library function: called once, with the values that stand for its arguments."""

    params: tuple[str, ...]
    body: Value

    def __repr__(self) -> str:
        return f"lambda {', '.join(self.params)}: {self.body!r}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choice(Value):
    branches: tuple[tuple[Value, Value], ...]
    default: Value

    def __repr__(self) -> str:
        text = "when" + ".when".join(f"({c!r}, {v!r})" for c, v in self.branches)
        return f"{text}.otherwise({self.default!r})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Applied(Value):
    """A plain function of chosen values."""

    function: Callable[..., Any]
    args: tuple[Value, ...]

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", "function")
        return f"apply({', '.join([name, *map(repr, self.args)])})"


class Columns:
    """The columns of the stream at hand: `col.name`, or `col["any name"]`.

    >>> from logflume.streams import col
    >>> (col.dep_delay > 15) & col.carrier.isin(["AA", "UA"])
    ((col.dep_delay > 15) & ((col.carrier == 'AA') | (col.carrier == 'UA')))
    """

    __slots__ = ("_side",)

    def __init__(self, side: str = "") -> None:
        self._side = side

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return Field(name, self._side)

    def __getitem__(self, name: str) -> Field:
        return Field(name, self._side)


@dataclass(frozen=True, slots=True)
class When:
    """A condition being built; `otherwise` ends it."""

    branches: tuple[tuple[Value, Value], ...]

    def when(self, condition: Any, value: Any) -> When:
        """Add a branch, taken when no earlier one was and `condition` is True."""
        return When((*self.branches, (lift(condition), lift(value))))

    def otherwise(self, value: Any) -> Value:
        """Return the value of the first branch whose condition is True, else `value`."""
        return Choice(self.branches, lift(value))


def when(condition: Any, value: Any) -> When:
    """Begin a choice: `when(col.x > 0, "up").when(col.x < 0, "down").otherwise("level")`; branches are evaluated lazily.

    >>> from logflume.streams import col
    >>> when(col.x > 0, "up").otherwise("down")
    when((col.x > 0), 'up').otherwise('down')
    """
    return When(((lift(condition), lift(value)),))


def apply(function: Callable[..., Any], *args: Any) -> Value:
    """A plain function of chosen values, nulls included: `apply(distance, col.lat, col.lon)`."""
    return Applied(function, tuple(lift(arg) for arg in args))


def lift(value: Any) -> Value:
    """Return a deferred value as it is, anything else as a constant."""
    return value if isinstance(value, Value) else Constant(value)


def lift_lambda(function: Callable[..., Any]) -> Lambda:
    """Return a Python function over values as a lambda: `lambda x: x * 2`."""
    from .callables import positional_names

    params = positional_names(function)
    return Lambda(params, lift(function(*(Param(name) for name in params))))


col = Columns()
table = Columns("table")
record_time = MetaField(Meta.ROWTIME)
window_start = MetaField(Meta.WINDOWSTART)
window_end = MetaField(Meta.WINDOWEND)
