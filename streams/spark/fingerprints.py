"""What a program computes, as text that is the same in every process: nodes, expressions, and the code of the user's functions.

A function is its code, what it closes over, its defaults, and what of its own project it calls by name, as deep as that goes; a
class is its fields and methods. Functions of Python, of this package and of other people's packages are their names. A module
that is used as `rules.limit` is its file. What is not seen: names that are put together while the program runs.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import logflume

_OURS = str(Path(str(logflume.__file__)).parent)
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
_ONCE = (FunctionType, type)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
DEPTH_MAX = 60
"""Nothing that a user writes is nested so deep; what is deeper counts by its type."""


def fingerprint(*values: object) -> str:
    """Return a digest of objects of a plan.

    >>> fingerprint(lambda n: n + 1) == fingerprint(lambda n: n + 1) != fingerprint(lambda n: n + 2)
    True
    """
    walk = _Walk()
    digest = hashlib.sha256()
    for value in values:
        for word in walk.words(value):
            digest.update(word.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


class _Walk:
    """Yields the words of objects. Of functions and classes that come again, and of what holds itself, only that it did.

    Other objects that come again are gone through again: which of them are one and the same is not the same in every process.
    """

    def __init__(self) -> None:
        self._met: dict[int, object] = {}
        self._above: list[int] = []

    def words(self, value: Any) -> Iterator[str]:
        if isinstance(value, (*_PLAIN, Enum)):
            yield f"{type(value).__qualname__} {value!r}"
            return
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, _ONCE):
            yield f"{value.__module__}.{value.__qualname__}"
            if id(value) in self._met:
                return
            self._met[id(value)] = value
        if id(value) not in self._above and len(self._above) < DEPTH_MAX:
            self._above.append(id(value))
            for part in _parts(value):
                yield from self.words(part)
            self._above.pop()
        yield "end"


def _parts(value: Any) -> Iterator[object]:
    """Yield what an object consists of, in an order that is the same in every process."""
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_flags)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif isinstance(value, ModuleType):
        yield from (value.__name__, _source(value))
    elif isinstance(value, BuiltinFunctionType):
        yield from (value.__module__, value.__qualname__)
    elif isinstance(value, Mapping):
        yield from sorted(((fingerprint(key), key, each) for key, each in value.items()), key=lambda pair: pair[0])
    elif isinstance(value, Set):
        yield from sorted(fingerprint(each) for each in value)
    elif isinstance(value, tuple | list):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))
    else:
        names = _slots(type(value))
        yield from (getattr(value, name) for name in names if hasattr(value, name))
        yield getattr(value, "__dict__", None) if names or hasattr(value, "__dict__") else _ADDRESS.sub("", repr(value))


def _parts_of_function(function: FunctionType) -> Iterator[object]:
    yield from (function.__defaults__, function.__kwdefaults__)
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))
    if not _is_own(function.__code__.co_filename):
        yield from (function.__module__, function.__qualname__)
        return
    yield function.__code__
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield from (name, function.__globals__[name])


def _names(code: CodeType) -> list[str]:
    """Return the names that code, and what is defined in it, may look up, sorted."""
    inner = {name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)}
    return sorted(inner | set(code.co_names))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _parts_of_class(cls: type) -> Iterator[object]:
    yield from (cls.__module__, cls.__qualname__)
    functions = [each for each in vars(cls).values() if isinstance(each, FunctionType)]
    own = [each for each in functions if _is_own(each.__code__.co_filename)]
    yield sorted((name, repr(of)) for name, of in vars(cls).get("__annotations__", {}).items())
    yield from sorted(own, key=lambda each: each.__qualname__)


def _slots(cls: type) -> list[str]:
    found = [vars(each).get("__slots__", ()) for each in cls.__mro__]
    return sorted(name for names in found for name in ((names,) if isinstance(names, str) else names) if name != "__weakref__")


def _is_own(path: str) -> bool:
    """Return whether a file is the user's: not Python's, not this package's, and nobody's that was installed."""
    return not path.startswith(("<frozen", f"{_OURS}/", *_INSTALLED, *_STANDARD))


def _source(module: ModuleType) -> str:
    file = getattr(module, "__file__", None) or ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and _is_own(file) and Path(file).is_file() else ""
