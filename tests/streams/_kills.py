"""Kills at a step of a hand-over: of the process that reaches it first."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from logflume.log import TopicPartition, connect

from ._spark_apps import PARTITIONS, PAUSE_S, WAIT_S


def wait_until_begun(address: str, application: str) -> None:
    """Wait until a part of what a hand-over writes is in the log, committed or not."""
    with connect(address) as log:
        admin = log.admin()
        topics = [topic for topic in admin.list_topics(include_internal=True) if topic.startswith(f"{application}-")]
        every = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
        deadline = time.monotonic() + WAIT_S
        while not any(admin.end_offsets(every, read_committed=False).values()):
            assert time.monotonic() < deadline
            time.sleep(PAUSE_S)


@dataclass(frozen=True)
class KillOnce:
    """A failpoint that kills its process at a step, if no other process did; pickles.

    `marker`: the file that says that it has been done.
    """

    address: str
    application: str
    at: str
    marker: str

    def __call__(self, reached: str) -> None:
        if reached != self.at:
            return
        if reached.startswith("writing"):
            wait_until_begun(self.address, self.application)
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
