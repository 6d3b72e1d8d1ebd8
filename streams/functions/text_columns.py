"""Functions of text over columns, by Arrow: what they give is what `text.py` gives, or the row is unsure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .columns import NotHeld, constant, has_wide, is_ascii, is_column, numbers, text_bytes, texts_in

_BLANKS = "".join(map(chr, range(0x21)))
_PAD_MAX = 10_000


def lower_columns(text: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return _cased(text[0], pc.ascii_lower, pc.utf8_lower, str.lower)


def upper_columns(text: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return _cased(text[0], pc.ascii_upper, pc.utf8_upper, str.upper)


def _cased(array: Any, plain: Callable[[Any], Any], wide: Callable[[Any], Any], exact: Callable[[str], str]) -> tuple[Any, ...]:
    """Arrow maps characters one by one; where Python says otherwise of all texts (ß, the last sigma), wide rows are unsure."""
    if is_ascii(array):
        return plain(array), None
    found = wide(array)
    try:
        whole = exact(bytes(text_bytes(array)).decode())
    except UnicodeDecodeError:
        return found, None, has_wide(array)
    if bytes(text_bytes(found)) == whole.encode():
        return found, None
    return found, None, has_wide(array)


def trim_columns(text: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return pc.utf8_trim(text[0], characters=_BLANKS), None


def length_columns(text: Any) -> tuple[Any, ...]:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = text[0]
    length = pc.binary_length if pa.types.is_binary(array.type) or is_ascii(array) else pc.utf8_length
    return numbers(length(array), np.int64), None


def contains_columns(text: Any, part: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return numbers(pc.match_substring(_varying(text)[0], constant(part)), np.bool_), None


def starts_columns(text: Any, start: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return numbers(pc.starts_with(_varying(text)[0], constant(start)), np.bool_), None


def ends_columns(text: Any, end: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return numbers(pc.ends_with(_varying(text)[0], constant(end)), np.bool_), None


def _varying(argument: Any) -> Any:
    if not is_column(argument):
        raise NotHeld("a constant where a column is looked into")
    return argument


def concat_columns(*parts: Any) -> tuple[Any, ...]:
    """Null parts are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = next(p for p in parts if is_column(p))[0]
    empty = pa.scalar(b"" if pa.types.is_binary(first.type) else "", first.type)
    arrays = []
    for part in parts:
        if part is None:
            continue
        array = texts_in(part)
        if is_column(part) and part[1] is not None:
            array = pc.if_else(pa.array(part[1]), array, empty)
        arrays.append(array)
    return pc.binary_join_element_wise(*arrays, empty, null_handling="skip"), None


def concat_text_columns(left: Any, right: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(texts_in(left), texts_in(right), "", null_handling="replace", null_replacement=""), None


def instr_columns(text: Any, sought: Any) -> tuple[Any, ...]:
    """Arrow tells the byte: the same as the character where all is ASCII. Nothing is found in a null."""
    import pyarrow.compute as pc

    array, valid = _varying(text)
    if not sought:
        raise NotHeld("a null or nothing is looked for")
    found = numbers(pc.find_substring(array, constant(sought)), np.int64) + 1
    if valid is not None:
        found = np.where(valid, found, 0)
    return (found, None) if is_ascii(array) else (found, None, has_wide(array))


def substring_columns(text: Any, position: Any, count: Any = 2**31) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    array, at, size = _varying(text)[0], constant(position), constant(count)
    if size < 0 or at < 0:
        if size < 0:
            return pc.utf8_slice_codeunits(array, 0, 0), None
        stop = at + size
        if stop < 0:  # the slice begins at the text's start where it is shorter, and may then be longer
            short = numbers(pc.less(pc.utf8_length(array), -at), np.bool_)
            return pc.utf8_slice_codeunits(array, at, stop), None, short
        cut = pc.utf8_slice_codeunits(array, at)
        return pc.utf8_slice_codeunits(cut, 0, size), None
    start = max(0, at - 1)
    return pc.utf8_slice_codeunits(array, start, start + size), None


def replace_columns(text: Any, old: Any, new: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    array, sought = _varying(text)[0], constant(old)
    if not sought:
        raise NotHeld("nothing is replaced")
    return pc.replace_substring(array, sought, constant(new)), None


def lpad_columns(text: Any, size: Any, pad: Any) -> tuple[Any, ...]:
    return _padded(text, size, pad, "utf8_lpad")


def rpad_columns(text: Any, size: Any, pad: Any) -> tuple[Any, ...]:
    return _padded(text, size, pad, "utf8_rpad")


def _padded(text: Any, size: Any, pad: Any, name: str) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    array, width, filler = _varying(text)[0], constant(size), constant(pad)
    if not 0 <= width <= _PAD_MAX or len(filler) != 1:
        raise NotHeld("padding by several characters, or none")
    return pc.utf8_slice_codeunits(getattr(pc, name)(array, width, padding=filler), 0, width), None


def split_columns(text: Any, delimiter: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    array, at = _varying(text)[0], constant(delimiter)
    if not at:
        raise NotHeld("an empty delimiter")
    return pc.split_pattern(array, at), None
