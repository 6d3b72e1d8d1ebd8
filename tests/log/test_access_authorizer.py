"""The authorizer against a model that looks at every ACL, and the rules that Kafka's documentation states."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.access import OWNER, AclAuthorizer, Operation, Pattern, Permission, Resource
from logflume.log.broker.access.acls import Acl, AclFilter, acl_from_json, acl_to_json, new_acl
from logflume.log.protocol import ErrorCode, KafkaError

NAMES = ["a", "ab", "abc", "b", "*"]
PRINCIPALS = ["User:a", "User:b", "User:*", "Group:a"]
HOSTS = ["*", "10.0.0.1", "10.0.0.0/24", "fd00::/8", "10.1.0.0/16"]
OPERATIONS = [op for op in Operation if op > Operation.ANY]

acls = st.builds(
    Acl,
    resource=st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    name=st.sampled_from(NAMES),
    pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
operations = st.sampled_from([op for op in OPERATIONS if op is not Operation.ALL])


def model(kept: list[Acl], principal: str, host: str, operation: Operation, name: str, *, is_open: bool) -> bool:
    """Kafka's rules, one ACL after the other."""
    about = [
        acl
        for acl in kept
        if acl.resource is Resource.TOPIC
        and (name.startswith(acl.name) if acl.pattern is Pattern.PREFIXED else acl.name in (name, "*"))
    ]

    def concerns(acl: Acl) -> bool:
        is_host = acl.host in ("*", host) or ("/" in acl.host and ip_address(host) in ip_network(acl.host))
        return is_host and acl.principal in (principal, "User:*" if principal.startswith("User:") else principal)

    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    said = [acl for acl in about if concerns(acl)]
    if any(acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in said):
        return False
    enough = {operation, Operation.ALL} | implied.get(operation, set())
    if any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in said):
        return True
    return is_open and not about


@given(
    kept=st.lists(acls, max_size=8),
    gone=st.lists(acls, max_size=4),
    principal=st.sampled_from(["User:a", "User:b", "User:c", "Group:a"]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.9", "10.1.2.3", "fd00::1", "192.168.0.1"]),
    operation=operations,
    name=st.sampled_from(["a", "ab", "abcd", "b", "c"]),
    is_open=st.booleans(),
)
def test_the_index_decides_like_the_rules(
    kept: list[Acl], gone: list[Acl], principal: str, host: str, operation: Operation, name: str, is_open: bool
) -> None:
    authorizer = AclAuthorizer(gone, is_open_without_acls=is_open)
    authorizer.add(kept)
    authorizer.remove(set(gone) - set(kept))
    rights = authorizer.rights(principal, host)
    expected = model(kept, principal, host, operation, name, is_open=is_open)
    assert rights.allows(operation, Resource.TOPIC, name) is expected
    assert rights.allows(operation, Resource.TOPIC, name) is expected, "a decision that is remembered"


@given(kept=st.lists(acls, max_size=6), is_open=st.booleans())
def test_write_to_some_topic_is_never_allowed_without_a_topic_to_write_to(kept: list[Acl], is_open: bool) -> None:
    authorizer = AclAuthorizer(kept, is_open_without_acls=is_open)
    rights = authorizer.rights("User:a", "10.0.0.1")
    candidates = ["unheard-of", "a0", "ab0", "abc0", "b0", "*0", *NAMES[:-1]]
    if any(rights.allows(Operation.WRITE, Resource.TOPIC, name) for name in candidates):
        assert rights.allows_some(Operation.WRITE, Resource.TOPIC)


def test_without_acls_all_is_refused_but_to_super_users_and_the_owner() -> None:
    authorizer = AclAuthorizer(super_users=["User:admin"])
    question: Any = (Operation.READ, Resource.TOPIC, "t")
    assert not authorizer.rights("User:ANONYMOUS", "127.0.0.1").allows(*question)
    assert authorizer.rights("User:admin", "127.0.0.1").allows(*question)
    assert authorizer.rights(OWNER, "unix").allows(*question)


def test_new_acls_apply_at_once_to_rights_asked_for_again() -> None:
    authorizer = AclAuthorizer(is_open_without_acls=True)
    assert authorizer.rights("User:a", "10.0.0.1").allows(Operation.READ, Resource.TOPIC, "t")
    deny = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:a", "*", Operation.READ, Permission.DENY)
    authorizer.add([deny])
    assert not authorizer.rights("User:a", "10.0.0.1").allows(Operation.READ, Resource.TOPIC, "t")
    assert not authorizer.rights("User:b", "10.0.0.1").allows(Operation.READ, Resource.TOPIC, "t"), "now there is an ACL"
    authorizer.remove([deny])
    assert authorizer.rights("User:b", "10.0.0.1").allows(Operation.READ, Resource.TOPIC, "t")


@given(acl=acls)
def test_an_acl_comes_back_from_what_is_kept(acl: Acl) -> None:
    assert acl_from_json(acl_to_json(acl)) == acl


def valid(**changes: Any) -> Acl:
    fields: dict[str, Any] = {
        "resource": Resource.TOPIC,
        "name": "t",
        "pattern": Pattern.LITERAL,
        "principal": "User:a",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return new_acl(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"resource": 0}, "resource type 0"),
        ({"resource": 1}, "resource type 1"),
        ({"resource": 99}, "resource type 99"),
        ({"pattern": 1}, "pattern type 1"),
        ({"pattern": 2}, "pattern type 2"),
        ({"operation": 1}, "operation 1"),
        ({"permission": 0}, "permission 0"),
        ({"name": ""}, "resource name"),
        ({"resource": Resource.CLUSTER, "name": "mine"}, "kafka-cluster"),
        ({"principal": "alice"}, "User:alice"),
        ({"principal": ":x"}, "User:alice"),
        ({"host": ""}, "host"),
        ({"host": "10.0.0.0/99"}, "10.0.0.0/8"),
        ({"name": "x" * 5000}, "4096"),
    ],
)
def test_what_is_no_acl_is_refused_with_a_reason(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        valid(**changes)
    assert caught.value.error is ErrorCode.INVALID_REQUEST
    assert text in str(caught.value)


def select(**changes: Any) -> AclFilter:
    fields: dict[str, Any] = {
        "resource": Resource.ANY,
        "name": None,
        "pattern": Pattern.ANY,
        "principal": None,
        "host": None,
        "operation": Operation.ANY,
        "permission": Permission.ANY,
    }
    return AclFilter(**(fields | changes))


@given(acl=acls)
def test_a_filter_of_anything_selects_every_acl(acl: Acl) -> None:
    assert select().selects(acl)


@given(acl=acls, name=st.sampled_from(["a", "ab", "zzz"]))
def test_match_selects_what_has_a_say(acl: Acl, name: str) -> None:
    has_say = acl.name in (name, "*") if acl.pattern is Pattern.LITERAL else name.startswith(acl.name)
    is_selected = select(pattern=Pattern.MATCH, name=name).selects(acl)
    assert is_selected is has_say


@given(acl=acls, name=st.sampled_from(NAMES))
def test_literal_and_prefixed_select_by_the_written_name(acl: Acl, name: str) -> None:
    for pattern in (Pattern.LITERAL, Pattern.PREFIXED):
        assert select(pattern=pattern, name=name).selects(acl) is (acl.pattern is pattern and acl.name == name)


@pytest.mark.parametrize(
    ("written", "comes_from"),
    [("FD00:0::1", "fd00::1"), ("10.0.0.1", "::ffff:10.0.0.1"), ("10.0.0.0/8", "::ffff:10.0.0.1"), ("fe80::1", "fe80::1%eth0")],
)
def test_a_denied_address_is_denied_in_whatever_form_it_is_written(written: str, comes_from: str) -> None:
    allow = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW)
    deny = Acl(Resource.TOPIC, "t", Pattern.LITERAL, "User:a", written, Operation.READ, Permission.DENY)
    authorizer = AclAuthorizer([allow, deny])
    assert not authorizer.rights("User:a", comes_from).allows(Operation.READ, Resource.TOPIC, "t")
    assert authorizer.rights("User:a", "192.168.0.1").allows(Operation.READ, Resource.TOPIC, "t")


@given(acl=acls, other=acls)
def test_a_filter_that_names_all_selects_one_acl(acl: Acl, other: Acl) -> None:
    fields = {name: getattr(acl, name) for name in Acl.__slots__}
    wanted = AclFilter(**fields)
    assert wanted.only_one() == acl
    assert wanted.selects(acl)
    assert wanted.selects(other) is (other == acl)
    for vague in ({"name": None}, {"host": None}, {"pattern": Pattern.MATCH}, {"operation": Operation.ANY}):
        assert AclFilter(**(fields | vague)).only_one() is None
