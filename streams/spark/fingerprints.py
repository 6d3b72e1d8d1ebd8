"""What a program computes, as text that is the same in every process: nodes, expressions, and the code of the user's functions.

A function is its code, what it closes over, its defaults, and what of its own project it calls by name, as deep as that goes; a
class is its bases and all that it defines, an object what it holds, and its class if that is the user's. Functions of Python, of
this package and of other people's packages are their names, objects of Python's and other people's classes what they say of
themselves (a logger its name). A module that is used as `rules.limit` is its file. What is not seen: names that are put together
while the program runs.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

import logflume

_OURS = str(Path(str(logflume.__file__)).parent)
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
_ONCE = (FunctionType, type)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
DEPTH_MAX = 60
"""Nothing that a user writes is nested so deep; what is deeper counts by its type."""
WORDS_MAX = 2_000_000
"""What comes after so many words does not count: a program is far shorter, and an answer is wanted."""
_NOT_CODE = frozenset({"__annotations__", "__doc__", "__firstlineno__", "__module__", "__static_attributes__", "_abc_impl"})
"""Of what a class defines: where and how it is written, and what is told otherwise."""


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

    def __init__(self, around: _Walk | None = None) -> None:
        self._met: dict[int, object] = dict(around._met) if around else {}
        self._above: list[int] = list(around._above) if around else []
        self._left: list[int] = around._left if around else [WORDS_MAX]

    def words(self, value: Any) -> Iterator[str]:
        self._left[0] -= 1
        if self._left[0] < 0:
            return
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
            for part in self._parts(value):
                yield from self.words(part)
            self._above.pop()
        yield "end"

    def _parts(self, value: Any) -> Iterator[object]:
        """Yield what an object consists of, in an order that is the same in every process."""
        if isinstance(value, Mapping):
            yield from sorted(((self._digest(key), each) for key, each in value.items()), key=lambda pair: pair[0])
        elif isinstance(value, Set):
            yield from sorted(map(self._digest, value))
        else:
            yield from _parts(value)
        if not isinstance(value, type) and _is_own_class(type(value)):
            yield type(value)

    def _digest(self, value: object) -> str:
        """Return the words of what has no place of its own in an order, in short; to this walk it is not met."""
        return hashlib.sha256("\0".join(_Walk(self).words(value)).encode("utf-8", "backslashreplace")).hexdigest()


def _parts(value: Any) -> Iterator[object]:
    """Yield what an object consists of; what has no order is not for here."""
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
    elif isinstance(value, tuple | list | deque):
        yield from value
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, cached_property):
        yield value.func
    elif isinstance(value, re.Pattern):
        yield from (value.pattern, value.flags)
    elif isinstance(value, np.ndarray):
        yield from (value.dtype.str, value.shape, value.tolist() if value.dtype.hasobject else value.tobytes())
    elif isinstance(value, SimpleNamespace):
        yield vars(value)
    elif _is_foreign_class(type(value)):
        yield from _parts_of_foreign(value)
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


def _parts_of_foreign(value: Any) -> Iterator[object]:
    """Yield what an object of Python's, or of another package's, says of itself: inside, it may lead anywhere."""
    if isinstance(value, logging.Logger | logging.LoggerAdapter):
        yield getattr(value, "name", "")
    elif hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    else:
        yield _ADDRESS.sub("", repr(value))


def _parts_of_class(cls: type) -> Iterator[object]:
    yield from (cls.__module__, cls.__qualname__)
    if not _is_own_class(cls):
        return
    yield from cls.__bases__
    yield sorted((name, repr(of)) for name, of in vars(cls).get("__annotations__", {}).items())
    for name, value in sorted(vars(cls).items()):
        if name not in _NOT_CODE and not isinstance(value, MemberDescriptorType | GetSetDescriptorType):
            yield from (name, value)


def _is_own_class(cls: type) -> bool:
    """Return whether a class is the user's; a module that nobody else can import is."""
    name = cls.__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return file is not None and _is_own(file)


def _is_foreign_class(cls: type) -> bool:
    """Return whether a class is neither the user's nor this package's."""
    return cls.__module__.partition(".")[0] != logflume.__name__ and not _is_own_class(cls)


def _slots(cls: type) -> list[str]:
    found = [vars(each).get("__slots__", ()) for each in cls.__mro__]
    return sorted(name for names in found for name in ((names,) if isinstance(names, str) else names) if name != "__weakref__")


def _is_own(path: str) -> bool:
    """Return whether a file is the user's: not Python's, not this package's, and nobody's that was installed."""
    return not path.startswith(("<frozen", f"{_OURS}/", *_INSTALLED, *_STANDARD))


def _source(module: ModuleType) -> str:
    file = getattr(module, "__file__", None) or ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and _is_own(file) and Path(file).is_file() else ""
