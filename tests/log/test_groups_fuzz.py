"""Any request that can be decoded, in any order, gets an answer that can be encoded: nothing raises, and time may pass."""

from __future__ import annotations

from inspect import isgenerator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.turns.slices import Slices
from logflume.log.protocol import codec, tables

from ._groups_harness import Broker
from ._protocol_strategies import message
from ._transactions_harness import TxnBroker

NAMES = ["", "a", "g", "t", "tx", "range"]
GROUP_APIS = sorted(Broker().handlers)
TRANSACTION_APIS = sorted(TxnBroker().handlers)


def tame(value: Any, data: st.DataObject) -> None:
    """Make some strings and numbers of a request ones that mean something, so that requests reach each other's state."""
    for name in type(value).__slots__:
        current = getattr(value, name)
        if isinstance(current, str) and data.draw(st.booleans()):
            setattr(value, name, data.draw(st.sampled_from(NAMES)))
        elif type(current) is int and data.draw(st.booleans()):
            setattr(value, name, data.draw(st.sampled_from([-2, -1, 0, 1, 7_000, 1000])))
        elif isinstance(current, list):
            for each in current:
                if hasattr(type(each), "__slots__") and not isinstance(each, str | int | bytes):
                    tame(each, data)


def ask(handlers: Any, api: str, data: st.DataObject) -> None:
    """Send one request and encode what comes back, now or later."""
    table = tables.api_named(api)
    version = data.draw(st.integers(table.versions.first, table.versions.last))
    request = data.draw(message(table.request, version))
    tame(request, data)
    answer = handlers[api](RequestContext(table.key, version, 1, "c", "h", 1), request)
    if isgenerator(answer):
        answer = Slices().run(answer)
    if isinstance(answer, Reply):
        answer.then(lambda response: codec.encode(response, version, bytearray()))
    else:
        codec.encode(answer, version, bytearray())


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize("first", GROUP_APIS)
@FUZZ
@given(data=st.data())
def test_groups_answer_whatever_comes(first: str, data: st.DataObject) -> None:
    broker = Broker()
    for api in [first, *data.draw(st.lists(st.sampled_from(GROUP_APIS), max_size=5))]:
        ask(broker.handlers, api, data)
        broker.time.advance(data.draw(st.sampled_from([0, 100, 10_000, 700_000])))
    broker.crash()
    broker.time.advance(100_000)


@pytest.mark.parametrize("first", TRANSACTION_APIS)
@FUZZ
@given(data=st.data())
def test_transactions_answer_whatever_comes(first: str, data: st.DataObject) -> None:
    broker = TxnBroker()
    for api in [first, *data.draw(st.lists(st.sampled_from(TRANSACTION_APIS), max_size=5))]:
        ask(broker.handlers, api, data)
        broker.time.advance(data.draw(st.sampled_from([0, 100, 10_000, 700_000])))
    broker.crash()
    broker.time.advance(100_000)
