"""With an authorizer, a fetch over a socket reads what its principal may read; without a replica's state it is a client's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log.protocol import ErrorCode, messages
from logflume.log.server.addresses import Address
from logflume.log.server.embedded import start_embedded

from ._wire import Wire, batch, create_topic_request, fetch_request, produce_request

CONFIGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
TOPIC, ANY, READ, DENY = 2, "User:*", 3, 2


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    listen = [Address("127.0.0.1", 0)]
    with start_embedded(str(tmp_path), listen=listen, configs=CONFIGS) as broker, Wire(broker.addresses[0].port) as wire:
        assert wire.call(create_topic_request("t"), 7).topics[0].error_code == 0
        wire.call(produce_request("t", batch(b"value")), 9)
        yield wire


@pytest.mark.parametrize("version", [4, 12])
def test_a_fetch_without_a_replicas_state_is_a_clients(wire: Wire, version: int) -> None:
    (topic,) = wire.call(fetch_request("t", {0: 0}), version).responses
    assert (topic.partitions[0].error_code, topic.partitions[0].high_watermark) == (0, 1)


def test_what_is_denied_is_not_read(wire: Wire) -> None:
    request = messages.CreateAclsRequest
    creation = request.AclCreation(
        resource_type=TOPIC, resource_name="t", principal=ANY, host="*", operation=READ, permission_type=DENY
    )
    assert wire.call(request(creations=[creation]), 3).results[0].error_code == 0
    (topic,) = wire.call(fetch_request("t", {0: 0}), 12).responses
    assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
