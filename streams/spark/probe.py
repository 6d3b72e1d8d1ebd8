"""Whether an executor can run the tasks of a step. It is sent there by value: of the package it imports what it tries."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

OF_PROFILES = (
    "; an executor finds profiles in its own user's .config/logflume/config.toml, or in a file that it sees: "
    "--conf spark.executorEnv.LOGFLUME_CONFIG=FILE"
)


@dataclass(frozen=True)
class Probe:
    """The function mapped over numbers: yields what is missing, in words.

    Attributes:
        work: a pickled `load_plan`.
        where: the log.
        marker: a file in the directory that all executors share; None: there need not be one.
        archived: a file of the archive, where that is a directory; None: it is not.
    """

    work: bytes
    where: str
    marker: str | None
    archived: str | None

    def __call__(self, number: int) -> Iterator[str]:
        for problem in self._problems():
            yield f"{socket.gethostname()} {problem}"

    def _problems(self) -> Iterator[str]:
        if self.marker is not None and not os.path.exists(self.marker):
            folder = os.path.dirname(self.marker)
            yield f"does not see {folder}: what is kept between batches or runs needs a directory that all executors share"
        if self.archived is not None and not os.path.exists(self.archived):
            yield f"does not see {self.archived}: an archive has to be in a directory that all executors share, or at s3://..."
        try:
            pickle.loads(self.work)()
            import logflume.streams.spark.steps
        except ModuleNotFoundError as error:
            python = f"Python {sys.version.split()[0]}, {sys.executable}"
            yield f"has no module {error.name} ({python}): install it there, or send it (--conf spark.submit.pyFiles=FILES)"
            return
        except ImportError as error:  # numpy, for one, says in a page what its cause says in a line
            why = error.__cause__ or error
            yield f"cannot import what is needed ({why}): are versions as here, spark.executor.pyspark.memory, if set, enough?"
            return
        except Exception as error:  # whatever the user's code raises is told  # noqa: BLE001
            yield f"cannot prepare the application: {type(error).__name__}: {error}"
            return
        try:
            logflume.log.connect(self.where).close()
        except logflume.log.LogflumeError as error:
            yield f"does not reach the log at {self.where}: {error}{OF_PROFILES if self.where.startswith('profile:') else ''}"
