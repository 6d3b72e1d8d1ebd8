"""Quotas: which counts, what is refused, that they survive a power cut, and changes of topics that are over one."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.quotas import QuotaTable
from logflume.log.broker.quotas.entities import CLIENT_KEYS, FETCH, PRODUCE, REQUEST
from logflume.log.broker.quotas.limiter import Quotas
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.testing.simulated import SimulatedTime
from logflume.log.protocol import ErrorCode, messages

from ._simulated_broker import SimulatedBroker
from ._wire import create_topic_request

Alter = messages.AlterClientQuotasRequest
Describe = messages.DescribeClientQuotasRequest
ANONYMOUS = {"user": "ANONYMOUS"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SimulatedBroker]:
    made = SimulatedBroker(tmp_path)
    yield made
    made.close()


def alter(broker: SimulatedBroker, entity: dict[str, str | None], *, dry: bool = False, **quotas: float | None) -> Any:
    entry = Alter.EntryData(
        entity=[Alter.EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()],
        ops=[Alter.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )
    return broker.call(Alter(entries=[entry], validate_only=dry), 1).entries[0]


def describe(broker: SimulatedBroker, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    parts = [
        Describe.ComponentData(entity_type=kind, match_type=match_type, match=match) for kind, match_type, match in components
    ]
    return broker.call(Describe(components=parts, strict=strict), 1)


def listed(response: Any) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    assert response.error_code == 0, response.error_message
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {value.key: value.value for value in entry.values})
        for entry in response.entries
    ]


USERS, CLIENTS = [None, "alice", "bob"], [None, "one", "two"]
entities = st.one_of(
    st.builds(lambda u, c: frozenset({("user", u), ("client-id", c)}), st.sampled_from(USERS), st.sampled_from(CLIENTS)),
    st.builds(lambda u: frozenset({("user", u)}), st.sampled_from(USERS)),
    st.builds(lambda c: frozenset({("client-id", c)}), st.sampled_from(CLIENTS)),
)


@given(
    table=st.dictionaries(
        entities, st.dictionaries(st.sampled_from([PRODUCE, FETCH]), st.integers(1, 99).map(float), min_size=1)
    ),
    user=st.sampled_from(["alice", "bob", "carol"]),
    client=st.sampled_from(["one", "two", "three"]),
)
def test_the_most_specific_quota_counts_and_users_before_client_ids(table: Any, user: str, client: str) -> None:
    def rank(entity: frozenset[tuple[str, str | None]]) -> tuple[int, ...] | None:
        """A higher tuple counts more; None does not apply."""
        parts = dict(entity)
        if parts.get("user", user) not in (user, None) or parts.get("client-id", client) not in (client, None):
            return None
        has_user, has_client = "user" in parts, "client-id" in parts
        return (has_user, parts.get("user") is not None, has_client, parts.get("client-id") is not None)

    ranked = [(rank(entity), quotas[PRODUCE]) for entity, quotas in table.items() if PRODUCE in quotas]
    applying = [(found, value) for found, value in ranked if found is not None]
    limit = QuotaTable(table).client_limit(PRODUCE, user, client)
    if not applying:
        assert limit is None
    else:
        assert limit is not None
        assert limit.value == max(applying)[1]


def test_quotas_are_set_listed_changed_and_removed(broker: SimulatedBroker) -> None:
    assert alter(broker, {"user": "alice", "client-id": None}, producer_byte_rate=1000.0, request_percentage=12.5).error_code == 0
    assert alter(broker, {"client-id": "app"}, consumer_byte_rate=5.0).error_code == 0
    assert alter(broker, {"ip": "10.0.0.1"}, connection_creation_rate=7.0).error_code == 0
    everything = listed(describe(broker))
    assert everything == [
        ({"user": "alice", "client-id": None}, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
        ({"client-id": "app"}, {"consumer_byte_rate": 5.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 7.0}),
    ]
    assert listed(describe(broker, ("user", 0, "alice"))) == everything[:1]
    assert listed(describe(broker, ("user", 0, "alice"), strict=True)) == []
    assert listed(describe(broker, ("client-id", 2, None))) == everything[:2]
    assert listed(describe(broker, ("client-id", 1, None))) == everything[:1]
    assert listed(describe(broker, ("client-id", 2, None), strict=True)) == everything[1:2]
    assert alter(broker, {"user": "alice", "client-id": None}, producer_byte_rate=None).error_code == 0
    assert listed(describe(broker, ("user", 2, None)))[0][1] == {"request_percentage": 12.5}
    assert alter(broker, {"user": "alice", "client-id": None}, request_percentage=None, producer_byte_rate=None).error_code == 0
    assert listed(describe(broker, ("user", 2, None))) == []


def test_a_dry_run_changes_nothing(broker: SimulatedBroker) -> None:
    assert alter(broker, {"user": "alice"}, dry=True, producer_byte_rate=1.0).error_code == 0
    assert listed(describe(broker)) == []
    assert not broker.core.quotas.is_active


def test_quotas_survive_a_power_cut(broker: SimulatedBroker) -> None:
    alter(broker, {"user": None}, consumer_byte_rate=9.0)
    broker.power_cut(random.Random(1))
    assert listed(describe(broker)) == [({"user": None}, {"consumer_byte_rate": 9.0})]
    assert broker.core.quotas.is_active


@pytest.mark.parametrize(
    ("entity", "quotas", "text"),
    [
        ({}, {"producer_byte_rate": 1.0}, "needs a user"),
        ({"group": "g"}, {"producer_byte_rate": 1.0}, "group"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "empty"),
        ({"ip": "10.0.0.1", "user": "a"}, {"connection_creation_rate": 1.0}, "combined"),
        ({"ip": "not-an-address"}, {"connection_creation_rate": 1.0}, "IP address"),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}, "connection_creation_rate"),
        ({"user": "a"}, {"producer_byte_rat": 1.0}, "did you mean 'producer_byte_rate'"),
        ({"user": "a"}, {"producer_byte_rate": -1.0}, "greater than 0"),
        ({"user": "a"}, {"producer_byte_rate": 0.5}, "whole number"),
        ({"user": "a"}, {"request_percentage": float("nan")}, "greater than 0"),
        ({"user": "a"}, {"request_percentage": float("inf")}, "greater than 0"),
        ({"user": "x" * 5000}, {"request_percentage": 1.0}, "4096"),
    ],
)
def test_what_is_no_quota_is_refused_with_a_reason(broker: SimulatedBroker, entity: Any, quotas: Any, text: str) -> None:
    answer = alter(broker, entity, **quotas)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert text in answer.error_message
    assert listed(describe(broker)) == []


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("group", 0, "g")], ErrorCode.UNSUPPORTED_VERSION),
        ([("", 0, "g")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("user", 0, "b")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("ip", 0, "b")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_mean_nothing_are_refused(broker: SimulatedBroker, components: Any, error: ErrorCode) -> None:
    response = describe(broker, *components)
    assert response.error_code == error
    assert response.entries is None


def test_changes_of_topics_are_refused_until_the_bucket_is_refilled(broker: SimulatedBroker) -> None:
    alter(broker, ANONYMOUS, controller_mutation_rate=1.0)
    assert broker.create("first", 15).error_code == 0, "11 tokens may be overdrawn once"
    refused = broker.call(create_topic_request("second", 1), 7)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms == 4000
    assert "second" not in broker.core.cluster.topics
    broker.time.advance(4000)
    assert broker.create("second").error_code == 0


def test_older_clients_are_only_slowed_down(broker: SimulatedBroker) -> None:
    alter(broker, ANONYMOUS, controller_mutation_rate=1.0)
    broker.create("first", 15)
    slowed = broker.call(create_topic_request("second", 1), 5)
    assert slowed.topics[0].error_code == 0
    assert slowed.throttle_time_ms == 5000


def test_topics_made_by_asking_for_them_count_too(broker: SimulatedBroker) -> None:
    alter(broker, ANONYMOUS, controller_mutation_rate=1.0)
    broker.create("first", 12)
    topics = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in ("auto-1", "auto-2")]
    answer = broker.call(messages.MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
    assert [topic.error_code for topic in answer.topics] == [0, 0]
    assert answer.throttle_time_ms == 3000


def test_deleting_and_growing_count_partitions_too(broker: SimulatedBroker) -> None:
    alter(broker, ANONYMOUS, controller_mutation_rate=1.0)
    broker.create("t", 9)
    grow = messages.CreatePartitionsRequest
    growing = grow(topics=[grow.CreatePartitionsTopic(name="t", count=12, assignments=None)])
    assert broker.call(growing, 3).throttle_time_ms == 1000
    delete = messages.DeleteTopicsRequest(topics=[messages.DeleteTopicsRequest.DeleteTopicState(name="t")])
    refused = broker.call(delete, 6)
    assert refused.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.time.advance(1000)
    assert broker.call(delete, 6).responses[0].error_code == 0


def context(api_key: int, *, user: str = "ANONYMOUS", client_id: str = "c") -> RequestContext:
    return RequestContext(api_key, 9, 1, client_id, "10.0.0.1", 1, f"User:{user}")


def quotas_of(**values: float) -> tuple[Quotas, SimulatedTime]:
    time = SimulatedTime()
    return Quotas(QuotaTable({frozenset({("user", None)}): values}), time), time


def test_produce_is_charged_by_request_bytes_per_user() -> None:
    quotas, time = quotas_of(producer_byte_rate=100.0)
    response = messages.ProduceResponse()
    assert quotas.settle(context(0), 1000, 0, response) == (response, 0)
    settled, quiet_ms = quotas.settle(context(0, client_id="other"), 500, 0, messages.ProduceResponse())
    assert quiet_ms == settled.throttle_time_ms == 5000, "all clients of a user share its quota"
    assert quotas.settle(context(0, user="bob"), 500, 0, messages.ProduceResponse())[1] == 0
    time.advance(20_000)
    assert quotas.settle(context(0), 500, 0, messages.ProduceResponse())[1] == 0


def test_an_unanswered_produce_is_charged_too() -> None:
    quotas, _ = quotas_of(producer_byte_rate=100.0)
    assert quotas.settle(context(0), 2000, 0, None) == (None, 10_000)


def test_request_time_is_charged_in_percent_and_held_against_for_a_window_at_most() -> None:
    quotas, _ = quotas_of(request_percentage=1.0)
    assert quotas.settle(context(3), 10, 50_000_000, messages.MetadataResponse())[1] == 0
    settled, quiet_ms = quotas.settle(context(3), 10, 900_000_000, messages.MetadataResponse())
    assert quiet_ms == settled.throttle_time_ms == 1000


def test_the_answer_that_is_shared_by_everybody_is_not_written_into() -> None:
    quotas, _ = quotas_of(request_percentage=1.0)
    shared = messages.ApiVersionsResponse()
    settled, quiet_ms = quotas.settle(context(18), 10, 10**9, shared)
    assert quiet_ms == settled.throttle_time_ms > 0
    assert shared.throttle_time_ms == 0


def test_a_fetch_over_the_limit_is_held_back_unless_it_never_would_be_less() -> None:
    quotas, time = quotas_of(consumer_byte_rate=100.0)
    assert quotas.max_fetch_bytes(context(1)) == 1000
    assert quotas.charge_fetch(context(1), 5000) == (False, 40_000), "one batch alone is over it"
    is_held_back, quiet_ms = quotas.charge_fetch(context(1), 100)
    assert (is_held_back, quiet_ms) == (True, 41_000)
    time.advance(41_000)
    assert quotas.charge_fetch(context(1), 100) == (False, 0)


def test_a_share_fetch_is_paid_for_by_waiting() -> None:
    quotas, _ = quotas_of(consumer_byte_rate=100.0)
    response = messages.ShareFetchResponse
    data = response.PartitionData(records=b"x" * 2000)
    given = response(responses=[response.ShareFetchableTopicResponse(partitions=[data])])
    assert quotas.settle(context(78), 10, 0, given) == (given, 10_000)
    assert given.throttle_time_ms == 10_000


def test_principals_that_are_no_users_have_no_quotas() -> None:
    quotas, _ = quotas_of(**dict.fromkeys(CLIENT_KEYS, 1.0))
    owner = context(0)._replace(principal="Owner:local")
    assert quotas.settle(owner, 10**9, 10**9, messages.ProduceResponse())[1] == 0
    assert quotas.mutations(owner, is_strict=True) is None


def test_an_address_that_connects_too_often_is_held() -> None:
    quotas = Quotas(QuotaTable({frozenset({("ip", None)}): {"connection_creation_rate": 1.0}}), SimulatedTime())
    assert [quotas.connection_wait_ms("10.0.0.1") for _ in range(10)] == [0] * 10
    assert quotas.connection_wait_ms("10.0.0.1") > 0
    assert quotas.connection_wait_ms("10.0.0.2") == 0


def test_the_use_of_many_clients_is_remembered_within_bounds() -> None:
    quotas = Quotas(QuotaTable({frozenset({("client-id", None)}): {REQUEST: 1.0}}), SimulatedTime())
    for number in range(25_000):
        quotas.settle(context(3, client_id=f"c{number}"), 1, 1000, None)
    assert len(quotas._limits) <= 10_000
    assert len(quotas._rates[REQUEST]._by_client) <= 10_000
