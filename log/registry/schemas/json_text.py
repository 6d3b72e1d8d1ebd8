"""JSON as schemas need it: order kept, whole numbers exact, nothing that other readers refuse."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from .parsed import InvalidSchema


def load(text: str, *, what: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidSchema: it is none, or nested too deeply to be read.
    """
    try:
        text.encode()
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise InvalidSchema(f"{what} is nested too deeply") from None
    except UnicodeEncodeError:
        raise InvalidSchema(f"{what} holds half of a surrogate pair") from None
    except ValueError as error:
        raise InvalidSchema(f"expected {what} in JSON: {error}") from error
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise InvalidSchema(f"{what} holds half of a surrogate pair") from None
    return found


def dump(value: Any) -> str:
    """Return the shortest JSON text.

    >>> dump({"a": [1, "é"]})
    '{"a":[1,"é"]}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
