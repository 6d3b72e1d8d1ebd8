"""Settings of all tests: an example of Hypothesis, and one that starts Spark, may take as long as a busy machine makes it."""

import os

import pytest
from hypothesis import settings

from ._java import QUICK_JAVA, quick_spark

SPARK_TIMEOUT_S = 900
"""Java starts several processes, and each of them Python: seconds of CPU that can be minutes."""

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# of the Spark drivers in tests, and in the commands that they run
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)
os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_spark())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with Spark the time that it takes, and put files with long tests first.

    A worker of `make test` takes file after file: at the end of the run a long one would leave the other cores idle.
    """
    long_files = set()
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        if item.get_closest_marker("spark") or item.get_closest_marker("slow"):
            long_files.add(item.path)
    items.sort(key=lambda item: item.path not in long_files)
