"""/inserts-stream: rows as JSON objects, one a line, each acknowledged once it is on disk; a refused row stops only itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from starlette.concurrency import run_in_threadpool

from logflume.log.registry import Rights
from logflume.sql.engine import SqlEngine
from logflume.sql.render import to_json

from .errors import BAD_REQUEST, RestError, as_rest_error
from .requests import InsertsTarget, decoded

LINE_BYTES_MAX = 1 << 20
PARTS_AHEAD_MAX = 8
"""Parts of a request whose rows are on their way to the disk; beyond them, reading waits."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """Rows of one part, the first of them numbered `first`."""

    first: int
    outcomes: Callable[[], list[Exception | None]]

    def told(self) -> bytes:
        """Wait for all, and tell of each."""
        outcomes, lines = self.outcomes(), []
        if not any(outcomes):
            return b"".join([b'{"status":"ok","seq":%d}\n' % seq for seq in range(self.first, self.first + len(outcomes))])
        for seq, outcome in enumerate(outcomes, self.first):
            if outcome is None:
                lines.append(b'{"status":"ok","seq":%d}\n' % seq)
                continue
            refused = as_rest_error(outcome)
            about = {"status": "error", "seq": seq, "error_code": refused.code, "message": refused.message}
            lines.append(to_json(about) + b"\n")
        return b"".join(lines)


async def acknowledged(parts: AsyncIterator[bytes], engine: SqlEngine, rights: Rights) -> AsyncIterator[bytes]:
    """Yield a line for each row: {status: ok, seq}, or {status: error, seq, error_code, message}.

    First comes an empty part, when the target is known. Lines of one part go together, and the next are read meanwhile.

    Raises:
        RestError: the first line names nothing that this user may fill, and nothing was written; or a line is too long.
    """
    sent: asyncio.Queue[_Sent | Exception | None] = asyncio.Queue(PARTS_AHEAD_MAX)
    lines = _lines(parts)
    first: list[bytes] = await anext(lines, [])
    if not first:
        raise RestError(BAD_REQUEST, 'expected {"target": STREAM} in the first line')
    target = decoded(first.pop(0), InsertsTarget).target
    await run_in_threadpool(partial(engine.rows.target, target, rights=rights))

    async def send() -> None:
        seq, rows = 0, first
        try:
            while True:
                if rows:
                    await sent.put(_Sent(seq, await run_in_threadpool(engine.rows.send, target, rows)))
                    seq += len(rows)
                rows = await anext(lines)
        except StopAsyncIteration:
            await sent.put(None)
        except Exception as error:  # noqa: BLE001 - raised again where the answer is written
            await sent.put(error)

    reading = asyncio.create_task(send())
    try:
        yield b""
        while (part := await sent.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield await run_in_threadpool(part.told)
        await reading
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the lines that end in each part, stripped, none blank; the last needs no end. Raises RestError: one is too long."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise RestError(BAD_REQUEST, f"a line holds at most {LINE_BYTES_MAX} bytes")
        if found := [line for each in lines if (line := each.strip())]:
            yield found
    if rest := rest.strip():
        yield [rest]
