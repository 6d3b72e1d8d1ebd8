"""The table of APIs and rights again, over a real listener: users who log in, and rights that an administrator gives them.

Each API x allowed, denied, absent; and who may not see a thing is told the same whether it exists or not.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.protocol import messages, tables

from ._secured import PASSWORDS, Secured
from ._wire import Wire, create_topic_request
from .test_access_apis import AUTHORIZER, CLUSTER, FILTERED, GROUP, OPEN_TO_ALL, TOPIC, TXN, Case, Filler, params, refusals_of
from .test_security_logins import log_in

ADMIN, USER = "admin", "alice"
LITERAL, ALLOW, ANY = 3, 3, 1
NAMES = {TOPIC: "t", GROUP: "group-there", TXN: "txn-there", CLUSTER: CLUSTER_NAME}
TABLE = list(params())
UNSAID = {
    ("CreateTopics", 2, Operation.DESCRIBE_CONFIGS),
    ("DescribeLogDirs", 1, Operation.DESCRIBE),
}
"""Where a version has no field for a refusal: what may not be seen is left out."""
ABSENT = {TOPIC: "n", GROUP: "group-not-there", TXN: "txn-not-there", CLUSTER: CLUSTER_NAME}


class Listener:
    """A broker, and a connection for each user that is logged in over its encrypted listener."""

    def __init__(self, path: Path) -> None:
        configs = AUTHORIZER | {"super.users": f"User:{ADMIN}", "group.initial.rebalance.delay.ms": "0"}
        self.secured = Secured(path, **configs)
        self._wires = {user: self._log_in(user) for user in (ADMIN, USER)}
        self.topic_id = b""
        self.restore()

    def close(self) -> None:
        for wire in self._wires.values():
            wire.sock.close()
        self.secured.close()

    def _log_in(self, user: str) -> Wire:
        wire = Wire(self.secured.ports["SASL_PLAINTEXT"])
        assert log_in(wire, user, PASSWORDS[user]).error_code == 0
        return wire

    def ask(self, request: Any, version: int, *, user: str = USER) -> Any:
        try:
            return self._wires[user].call(request, version)
        except (ConnectionError, TimeoutError):
            self._wires[user].sock.close()
            self._wires[user] = self._log_in(user)
            raise

    def restore(self) -> None:
        """Take all rights back; have the topic, the group and the transactional id there."""
        self.allow([])
        answer = self.ask(create_topic_request(NAMES[TOPIC]), 7, user=ADMIN).topics[0]
        if answer.error_code == 0:
            self.topic_id = answer.topic_id
        commit = messages.OffsetCommitRequest
        partition = commit.OffsetCommitRequestPartition(committed_offset=0)
        topic = commit.OffsetCommitRequestTopic(name=NAMES[TOPIC], partitions=[partition])
        self.ask(commit(group_id=NAMES[GROUP], topics=[topic]), 8, user=ADMIN)
        self.ask(messages.InitProducerIdRequest(transactional_id=NAMES[TXN], transaction_timeout_ms=60_000), 4, user=ADMIN)

    def allow(self, rights: Sequence[tuple[Operation, Resource, str]]) -> None:
        """Give the user exactly these rights."""
        remove = messages.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
        )
        remove.resource_name_filter = remove.host_filter = remove.principal_filter = None
        answer = self.ask(messages.DeleteAclsRequest(filters=[remove]), 3, user=ADMIN)
        assert answer.filter_results[0].error_code == 0
        make = messages.CreateAclsRequest.AclCreation
        made = [
            make(
                resource_type=resource, resource_name=name, resource_pattern_type=LITERAL, principal=f"User:{USER}", host="*",
                operation=operation, permission_type=ALLOW,
            )
            for operation, resource, name in dict.fromkeys(rights)
        ]  # fmt: skip
        answer = self.ask(messages.CreateAclsRequest(creations=made), 3, user=ADMIN)
        assert {result.error_code for result in answer.results} <= {0}


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    made = Listener(tmp_path_factory.mktemp("listener"))
    yield made
    made.close()


def is_offered(listener: Listener, api: str, version: int) -> bool:
    offered = listener.ask(messages.ApiVersionsRequest(), 0).api_keys
    key = tables.api_names()[api]
    return any(each.api_key == key and each.min_version <= version <= each.max_version for each in offered)


def request_of(each: Case, version: int, listener: Listener, names: dict[Resource, str]) -> Any:
    fields = {"principal": "User:a", "host": "*"} | each.fields
    resource = fields.get("resources", {})
    if resource.get("resource_name") == NAMES[TOPIC]:
        fields["resources"] = resource | {"resource_name": names[TOPIC]}
    return Filler(tables.api_named(each.api).request, version, listener.topic_id, names).request(fields)


@pytest.mark.parametrize(("each", "version"), TABLE)
def test_who_logged_in_may_do_what_he_has_the_right_to(listener: Listener, each: Case, version: int) -> None:
    if not is_offered(listener, each.api, version):
        pytest.skip("not offered")
    names = NAMES | {TOPIC: each.topic, GROUP: f"g-{each.api}-{version}-{each.label}"}
    needed = [(operation, resource, names[resource]) for operation, resource in each.rights]

    def refusals(rights: Sequence[tuple[Operation, Resource, str]]) -> set[int]:
        listener.allow(rights)
        for api, fields in each.prepared:
            last = tables.api_named(api).versions.last
            listener.ask(request_of(Case(api, (), fields), last, listener, names), last, user=ADMIN)
        return refusals_of(listener.ask(request_of(each, version, listener, names), version))

    def said(right: tuple[Operation, Resource, str]) -> set[int]:
        return set() if (each.api, version, right[0]) in UNSAID else {each.refusal or right[1].refusal}

    assert said(needed[0]) <= refusals([])
    for missing in needed if len(needed) > 1 else ():
        assert refusals([right for right in needed if right != missing]) == said(missing)
    assert refusals(needed) == set()
    listener.restore()


@pytest.mark.parametrize(("each", "version"), TABLE)
def test_whether_a_thing_exists_is_not_told(listener: Listener, each: Case, version: int) -> None:
    """By name; a topic's id is 122 random bits, which nobody guesses."""
    if not is_offered(listener, each.api, version):
        pytest.skip("not offered")
    listener.allow([])
    answers = []
    for names in (NAMES, ABSENT):
        request = request_of(each, version, listener, names)
        answers.append(plain(listener.ask(request, version), {names[TOPIC], names[GROUP], names[TXN]}))
    assert answers[0] == answers[1]


def plain(value: Any, names: set[str]) -> Any:
    """Return an answer as plain values, with each name that was asked for as one and the same."""
    if isinstance(value, list):
        return [plain(each, names) for each in value]
    if isinstance(value, str):
        for name in names:
            value = "NAME" if value == name else value.replace(f"'{name}'", "'NAME'")
        return value
    if hasattr(type(value), "__slots__") and not isinstance(value, int):
        return {name: plain(getattr(value, name), names) for name in type(value).__slots__}
    return value


def test_no_api_is_left_out() -> None:
    covered = {param.values[0].api for param in params()} | OPEN_TO_ALL | FILTERED
    assert len(covered) > 60


def test_a_session_without_a_login_has_no_rights_at_all(listener: Listener) -> None:
    """On every API: the broker closes the connection."""
    for key in tables.api_names().values():
        if key in (17, 18, 36):
            continue
        with Wire(listener.secured.ports["SASL_PLAINTEXT"]) as wire:
            wire.sock.sendall(struct.pack(">ihhih", 12, key, tables.api(key).versions.last, 7, -1) + b"\0\0")
            assert wire.is_closed_by_broker()
