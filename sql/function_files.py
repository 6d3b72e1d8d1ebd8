"""Functions written in Python, from files of the user: one file, or all of a folder, as rows of the library of functions.

A function pickles as the text of its file and its name there, so that who runs a query elsewhere needs no copy of the file.
"""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import Column
from logflume.streams.functions import Aggregate, AggregateOverload, Library, Overload, Scalar, Signature, builtin_library
from logflume.streams.graph import Aggregator

from .python_functions import ATTRIBUTE, Declaration

FILES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """A file as it was read."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """A part of a function over values of columns. `attribute`: what is decorated, by its name in the file."""

    file: FunctionFile
    attribute: str
    part: str
    call: Callable[..., Any]

    def __call__(self, *values: Any) -> Any:
        try:
            return self.call(*values)
        except Exception as error:
            raise ValueError(f"{self.attribute}: {type(error).__name__}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _called, (self.file, self.attribute, self.part)


def _called(file: FunctionFile, attribute: str, part: str) -> Called:
    return Called(file, attribute, part, _declared(file)[attribute].calls[part])


def load_functions(path: Path, base: Library | None = None) -> Library:
    """Return a library with the functions of a file, or of the files of a folder (`*.py`, but `_*.py`), beside those of `base`.

    Raises:
        InvalidInput: a file cannot be read or loaded (with its line), declares nothing, or a name that is taken.
    """
    known = base or builtin_library()
    rows: dict[str, Scalar | Aggregate] = {}
    kinds: dict[str, str] = {}
    for file in function_files(path):
        for attribute, declaration in _declared(file).items():
            name, kind = declaration.name, declaration.kind
            if known.kind_of(name) is not None:
                raise InvalidInput(
                    f"{file.path}: {name} is the name of a function that comes with logflume; "
                    f"give another: @{kind}(name='MY_{name}')"
                )
            if kinds.setdefault(name, kind) != kind:
                raise InvalidInput(f"{file.path}: {name} is declared as @{kind} and as @{kinds[name]}; one name is one kind")
            rows[name] = _joined(rows.get(name), _row(file, attribute, declaration), file)
    by_kind: dict[str, list[Any]] = {"scalar": [], "table": [], "aggregate": []}
    for name, row in rows.items():
        by_kind[kinds[name]].append(row)
    return known.extended(scalars=by_kind["scalar"], tables=by_kind["table"], aggregates=by_kind["aggregate"])


def functions_at(path: Path | None) -> Library | None:
    """Return `load_functions` of a path that may not be given; None: nothing is added."""
    return None if path is None else load_functions(path)


def function_files(path: Path) -> list[FunctionFile]:
    """Return a file, or those of a folder (`*.py`, but `_*.py`), and their text. Raises InvalidInput: as `load_functions`."""
    if path.is_dir():
        found = sorted(each for each in path.glob("*.py") if not each.name.startswith("_"))
        if not found or len(found) > FILES_MAX:
            raise InvalidInput(f"{path}: expected 1 to {FILES_MAX} files *.py with functions, found {len(found)}")
        return [_read(each) for each in found]
    return [_read(path)]


def _read(path: Path) -> FunctionFile:
    try:
        return FunctionFile(str(path), path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InvalidInput(f"functions cannot be read from {path}: {error.strerror}") from None


@lru_cache(maxsize=FILES_MAX)
def _declared(file: FunctionFile) -> Mapping[str, Declaration]:
    """Load a file; return what it declares, by its name there. The same text is loaded once in a process."""
    name = f"_logflume_functions_{zlib.crc32(repr(file).encode()):08x}"
    module = ModuleType(name)
    module.__file__ = file.path
    sys.modules[name] = module  # where annotations and classes look for their names
    try:
        exec(compile(file.text, file.path, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        sys.modules.pop(name, None)
        told = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {getattr(error, 'msg', error)}"
        raise InvalidInput(f"{file.path}:{_line_of(error, file.path)}: {told}") from error
    found = {key: each for key, value in vars(module).items() if isinstance(each := getattr(value, ATTRIBUTE, None), Declaration)}
    if not found:
        raise InvalidInput(f"{file.path} declares no functions: put @scalar, @aggregate or @table of logflume.sql over them")
    return found


def _line_of(error: Exception, path: str) -> int:
    """Return the line of a file where loading it failed."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 1
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] or 1 if lines else 1


def _row(file: FunctionFile, attribute: str, declaration: Declaration) -> Scalar | Aggregate:
    calls = {part: Called(file, attribute, part, call) for part, call in declaration.calls.items()}
    if declaration.kind == "aggregate":
        aggregator = Aggregator(
            declaration.name,
            declaration.type,
            tuple(Column(f"part{index}", type) for index, type in enumerate(declaration.state)),
            declaration.initial,
            calls["add"],
            calls["result"],
            merge=calls.get("merge"),
            undo=calls.get("undo"),
            skips_null=not declaration.takes_null,
        )
        form = AggregateOverload(declaration.signatures[0], lambda types, constants: aggregator, has_undo="undo" in calls)
        return Aggregate(declaration.name, declaration.doc, (form,))
    forms = [Overload(each, calls["call"], handles_null=declaration.takes_null) for each in declaration.signatures]
    return Scalar(declaration.name, declaration.doc, None, tuple(forms))


def _joined(before: Any, row: Any, file: FunctionFile) -> Any:
    """Return a function with further forms. Raises InvalidInput: it has such a form already."""
    if before is None:
        return row
    for each in row.overloads:
        if any(_takes(each.signature) == _takes(other.signature) for other in before.overloads):
            raise InvalidInput(f"{file.path}: {row.name}{each.signature} is declared twice with these arguments")
    return replace(before, overloads=(*before.overloads, *row.overloads))


def _takes(signature: Signature) -> tuple[Any, ...]:
    return signature.params, signature.variadic
