"""A process that compacts: `python -m logflume.log.storage.compact` reads a plan as JSON, writes the result as JSON.

The broker leaves this work to a process of its own (`cleaner.py`), for Python's lock would let it slow down every request.
"""

from __future__ import annotations

import os
import sys

import msgspec

from logflume.log.errors import LogflumeError

from .compaction import CompactionPlan, run_compaction
from .disk import OsDisk

_NICENESS = 10


def main() -> int:
    """Compact what the plan on standard input says; 1 and the cause on standard error if that fails."""
    os.nice(_NICENESS)
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=CompactionPlan)
    try:
        result = run_compaction(plan, disk=OsDisk())
    except LogflumeError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
