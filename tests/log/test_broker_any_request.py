"""Any well-formed request of any version, with any values, is answered, and the answer can be encoded."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import CLOSE_CONNECTION, RequestContext
from logflume.log.protocol import frames, tables

from ._protocol_strategies import message
from ._simulated_broker import SimulatedBroker
from ._wire import batch

KNOWN_NAMES = ["known", "group", "__consumer_offsets", "retention.ms", "cleanup.policy", "consumer", "range", "1"]


@pytest.fixture(scope="module")
def broker() -> Iterator[SimulatedBroker]:
    with tempfile.TemporaryDirectory() as path:
        made = SimulatedBroker(Path(path))
        coordinators = Coordinators(made.core)
        made.handlers = Handlers(
            made.core,
            coordinators=coordinators.handlers(),
            admission=coordinators.transactions,
            long_polls=[coordinators.share.fetch],
        )
        yield made
        coordinators.close()
        made.close()


def handled() -> list[Any]:
    return [pytest.param(key, id=name) for name, key in tables.api_names().items()]


def name_something_known(value: Any, data: st.DataObject) -> None:
    """Put names of things that exist, a topic id and a real batch into some fields, so that requests get further."""
    for field in type(value).__slots__:
        current = getattr(value, field)
        if isinstance(current, str) and data.draw(st.booleans()):
            setattr(value, field, data.draw(st.sampled_from(KNOWN_NAMES)))
        elif field == "records" and data.draw(st.booleans()):
            value.records = batch(b"v")
        elif isinstance(current, list):
            for each in current:
                if hasattr(type(each), "__slots__"):
                    name_something_known(each, data)
        elif isinstance(current, int) and not isinstance(current, bool) and data.draw(st.booleans()):
            setattr(value, field, data.draw(st.sampled_from([0, 1, -1])))


@pytest.mark.parametrize("key", handled())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_request_is_answered(broker: SimulatedBroker, key: int, data: st.DataObject) -> None:
    handlers = broker.handlers
    table = tables.api(key).request
    version = data.draw(st.integers(table.versions.first, table.versions.last), label="version")
    if not handlers.is_handled(key, version):
        assert key not in {each.api_key for each in handlers.api_versions.api_keys}, "what is not handled is not advertised"
        return
    request = data.draw(message(table, version), label="request")
    name_something_known(request, data)
    if "known" not in broker.core.cluster.topics:
        broker.create("known", 2)
    bound_partitions(request)
    context = RequestContext(key, version, 1, "client", "here", 1)
    outcome = handlers.handle(context, request)
    if isinstance(outcome, Reply):
        broker.time.advance(400_000)
        outcome = outcome.value if outcome.is_done else None
    if table.name != "ProduceRequest" or request.acks != 0:
        assert outcome is not CLOSE_CONNECTION, "a handler failed"
    if outcome is not None and outcome is not CLOSE_CONNECTION:
        parts = frames.response_frame(outcome, version, 1)
        raw = memoryview(b"".join(part if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts))
        frames.decode_response(raw[4:], key, version)


def bound_partitions(request: Any) -> None:
    """Ask for few partitions: thousands are allowed, and slow on the simulated disk."""
    for topic in getattr(request, "topics", None) or []:
        for field in ("num_partitions", "count"):
            if hasattr(topic, field):
                setattr(topic, field, min(getattr(topic, field), 5))
