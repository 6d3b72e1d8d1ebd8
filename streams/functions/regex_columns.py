"""Patterns over columns, by Arrow, whose regular expressions are RE2 as well."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .columns import NotHeld, constant, is_column, numbers


def like_columns(text: Any, pattern: Any, escape: Any = None) -> tuple[Any, ...]:
    """A null text is not like anything."""
    import pyarrow.compute as pc

    from .regexes import like_pieces

    wanted, by = constant(pattern), constant(escape)
    if wanted is None or not is_column(text):
        raise NotHeld("LIKE of a constant")
    array, valid = text
    pieces = like_pieces(wanted, by)
    kinds = [kind for kind, _ in pieces]
    body = "".join(t for _, t in pieces)
    core = "".join("t" if kind == "text" else kind for kind in kinds).strip("%")
    if set(core) <= {"t"} and body:
        is_open_left, is_open_right = kinds[0] == "%", kinds[-1] == "%"
        if is_open_left and is_open_right:
            found = pc.match_substring(array, body)
        elif is_open_left:
            found = pc.ends_with(array, body)
        else:
            found = pc.starts_with(array, body) if is_open_right else pc.equal(array, body)
    else:
        out = [".*" if kind == "%" else "." if kind == "_" else re.escape(t) for kind, t in pieces]
        found = pc.match_substring_regex(array, "(?s)\\A" + "".join(out) + "\\z")
    matched = numbers(found, np.bool_)
    return (matched if valid is None else matched & valid), None


def regexp_extract_columns(pattern: Any, text: Any) -> tuple[Any, ...]:
    """The whole match is made a group of its own."""
    import pyarrow.compute as pc

    from .regexes import compiled

    wanted = constant(pattern)
    if not is_column(text):
        raise NotHeld("a constant text")
    try:
        expression = compiled(wanted)
    except ValueError:
        raise NotHeld("a pattern that is none") from None
    if expression.groups or "(?" in wanted:
        raise NotHeld("groups")
    found = pc.extract_regex(text[0], f"(?P<m>{wanted})")
    valid = numbers(found.is_valid(), np.bool_)
    return pc.struct_field(found, "m"), None if valid.all() else valid
