"""Calls an embedded broker by message objects, and gives it small disks and full ones."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.protocol import messages
from logflume.log.server import EmbeddedBroker

from ._wire import create_topic_request, produce_request


class Calls:
    """Requests of a test to an embedded broker; waits for each answer."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker

    def __call__(self, message: Any, version: int) -> Any:
        name = type(message).__name__.removesuffix("Request")
        return self.broker.submit(name, version, message).result(60)

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Create a topic; returns its result."""
        (result,) = self(create_topic_request(name, partitions, **configs), 7).topics
        return result

    def produce(self, topic: str, *batches: bytes | None, version: int = 9, acks: int = -1) -> list[Any]:
        """Produce one batch for each of partitions 0, 1, ...; returns the partition responses."""
        (result,) = self(produce_request(topic, *batches, acks=acks), version).responses
        return list(result.partition_responses)


def keep_free(broker: EmbeddedBroker, size_bytes: int) -> None:
    """Say how much of the disk is kept free: with 2^62 it is full for records."""
    resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    config = messages.IncrementalAlterConfigsRequest.AlterableConfig(
        name="logflume.disk.min.free.bytes", config_operation=0, value=str(size_bytes)
    )
    request = messages.IncrementalAlterConfigsRequest(resources=[resource(resource_type=4, resource_name="", configs=[config])])
    assert Calls(broker)(request, 1).responses[0].error_code == 0


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of 24 MiB at a new directory, where this machine lets us make one."""
    path.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("needs root to mount a small tmpfs")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
