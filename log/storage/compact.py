"""A process that compacts (`python -m logflume.log.storage.compact`): reads orders and answers each, until its input ends.

The broker leaves this work to a process of its own (`cleaner.py`), for Python's lock would let it slow down every request.
Both directions: a length of four bytes, then JSON. It dies with the broker (`log/children.py`).
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from logflume.log.batch.tiers import kernel_tier
from logflume.log.children import end_with_parent
from logflume.log.errors import LogflumeError

from .compact_orders import LENGTH, Budget, Order, Reply
from .compaction import run_compaction
from .disk import OsDisk

_decode_order = msgspec.json.Decoder(Order).decode

COMPILED_FROM_BYTES = 32 << 20
"""From this size on it pays to load the compiled kernels first (0.5 s)."""
_NICENESS = 10


def main() -> None:
    """Compact what the orders on standard input say, one after the other."""
    end_with_parent(signal.SIGKILL)
    os.nice(_NICENESS)
    disk = OsDisk()
    while prefix := sys.stdin.buffer.read(LENGTH.size):
        (length,) = LENGTH.unpack(prefix)
        order = _decode_order(sys.stdin.buffer.read(length))
        plan = order.plan
        if sum(segment.size_bytes for segment in plan.segments) >= COMPILED_FROM_BYTES:
            kernel_tier().load()
        try:
            reply = Reply(run_compaction(plan, disk=disk, pace=Budget(order.max_bytes_per_s).spend))
        except LogflumeError as error:
            reply = Reply(error=str(error))
        message = msgspec.json.encode(reply)
        sys.stdout.buffer.write(LENGTH.pack(len(message)) + message)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
