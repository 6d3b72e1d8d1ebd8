"""The error tree of logflume and Kafka's table of error codes.

    LogflumeError
    +-- InvalidInput            the caller gave something that cannot be right (message says what and how to fix it)
    |   +-- UnknownName         a name that does not exist, with near matches
    |   +-- DecodeError         bytes that do not fit the declared format or schema
    +-- KafkaError              a broker answered with an error code of the Kafka protocol
    +-- TransportError          a connection could not be made, was lost or timed out
    +-- StorageError            the disk refused, or what is on it cannot be trusted
        +-- DataDirLocked       another process holds the directory
        +-- CorruptLog          bytes in the middle of a log fail their checksum

Codes and retriability follow the "Error Codes" table of the Kafka protocol guide (4.3).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LogflumeError(Exception):
    """Root of every error raised on purpose.

    Attributes:
        code: stable upper-case name, for programs.
        is_retriable: whether the same call may succeed later without a change by the caller.
    """

    code: str = "LOGFLUME_ERROR"
    is_retriable: bool = False


class InvalidInput(LogflumeError):
    """The caller's input is wrong; nothing has been changed."""

    code = "INVALID_INPUT"


class UnknownName(InvalidInput):
    """A name that does not exist; the message lists near matches, or else all there are, if they are few.

    >>> print(UnknownName("column of 'orders'", "cent", ["item", "cents"]))
    unknown column 'cent' of 'orders'; did you mean 'cents'?
    >>> print(UnknownName("store", "totals", ["spent"]))
    unknown store 'totals'; there is spent
    """

    code = "UNKNOWN_NAME"
    listed_max = 8

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        near = near_matches(name, known)
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        if not near and 0 < len(known) <= self.listed_max:
            hint = f"; there is {', '.join(known)}"
        kind, of, owner = what.partition(" of ")
        super().__init__(f"unknown {kind} {name!r}{of}{owner}{hint}")
        self.what, self.name, self.near = what, name, near


class UnknownTopic(UnknownName):
    """A topic that does not exist; the message says how it is made where none has nearly that name."""

    listed_max = 0

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("topic", name, known)
        if not self.near:
            self.args = (f"{self}; `logflume topic create {name}` makes it",)


class DecodeError(InvalidInput):
    """Bytes that do not fit the declared format or schema."""

    code = "DECODE_ERROR"


class TransportError(LogflumeError):
    """A connection could not be made, was lost, or timed out."""

    code = "TRANSPORT_ERROR"
    is_retriable = True


class StorageError(LogflumeError):
    """The disk refused an operation, or what is on it cannot be trusted."""

    code = "STORAGE_ERROR"


class DataDirLocked(StorageError):
    """Another process holds the data directory."""

    code = "DATA_DIR_LOCKED"


class CorruptLog(StorageError):
    """Bytes in the middle of a log fail their checksum; names file and position."""

    code = "CORRUPT_LOG"


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that look like `name`, best first, case-insensitively.

    >>> near_matches("tpoic", ["topic", "group"])
    ['topic']
    """
    by_fold: dict[str, str] = {}
    for k in known:
        by_fold.setdefault(k.casefold(), k)
    return [by_fold[m] for m in difflib.get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.6)]
