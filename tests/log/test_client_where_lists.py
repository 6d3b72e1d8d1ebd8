"""A list of brokers with something else in it is a mistake, never a directory of that name."""

import pytest

from logflume.log import InvalidInput
from logflume.log.client.where import parse_where


@pytest.mark.parametrize("where", ["127.0.0.1:9092, unix:/tmp/broker.sock", "host:9092,./data", "host:9092,other"])
def test_a_broken_list_of_brokers_is_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match="each part of a list of brokers"):
        parse_where(where)
