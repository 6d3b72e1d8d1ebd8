"""A process that compacts (`python -m logflume.log.storage.compact`): reads plans and answers each, until its input ends.

The broker leaves this work to a process of its own (`cleaner.py`), for Python's lock would let it slow down every request.
Both directions: a length of four bytes, then JSON.
"""

from __future__ import annotations

import os
import struct
import sys

import msgspec

from logflume.log.errors import LogflumeError

from .compaction import CompactionPlan, CompactionResult, run_compaction
from .disk import OsDisk

LENGTH = struct.Struct(">I")
_NICENESS = 10


class Reply(msgspec.Struct, frozen=True):
    """What came of a plan: a result, or why there is none."""

    result: CompactionResult | None = None
    error: str = ""


def main() -> None:
    """Compact what the plans on standard input say, in their order."""
    os.nice(_NICENESS)
    disk = OsDisk()
    while prefix := sys.stdin.buffer.read(LENGTH.size):
        (length,) = LENGTH.unpack(prefix)
        plan = msgspec.json.decode(sys.stdin.buffer.read(length), type=CompactionPlan)
        try:
            reply = Reply(run_compaction(plan, disk=disk))
        except LogflumeError as error:
            reply = Reply(error=str(error))
        message = msgspec.json.encode(reply)
        sys.stdout.buffer.write(LENGTH.pack(len(message)) + message)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
