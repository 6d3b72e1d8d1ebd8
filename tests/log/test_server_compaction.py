"""A running broker compacts the topics that ask for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from logflume.log.batch import decode_records, encode_batch
from logflume.log.server.shell import BrokerShell

from ._simulated_broker import made, make_topic


def test_a_running_broker_compacts_compacted_topics_only(tmp_path: Path) -> None:
    async def main() -> None:
        shell = await BrokerShell.start(str(tmp_path), has_unix_socket=False)
        logs = {}
        for topic, policy in (("table", "compact"), ("stream", "delete")):
            await made(make_topic(shell.core, topic, 1, {"cleanup.policy": policy}))
            partition = shell.core.partition(topic, 0)
            assert partition is not None
            logs[topic] = partition.log
            for i in range(4):
                partition.log.append(encode_batch([b"key"], [b"value %d" % i], [i]), leader_epoch=0, now_ms=0)
                partition.log.roll()
        shell._compact()
        assert shell._compaction is not None
        await shell._compaction
        values = {
            topic: [r.value for _, piece in log.headers(0) for r in decode_records(piece.read())] for topic, log in logs.items()
        }
        assert values == {"table": [b"value 3"], "stream": [b"value %d" % i for i in range(4)]}
        await shell.stop()

    asyncio.run(main())
