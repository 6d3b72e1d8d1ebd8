"""What one may do oneself, as the broker tells it: allowed, denied, hidden, and who one is by one's own settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import Log, Security, connect
from logflume.log.access import CLUSTER, AclRule, create_acls
from logflume.log.own_rights import OwnRights, login_of, own_rights
from logflume.log.protocol import KafkaError

from ._secured import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "super.users": "User:admin"}
    started = Secured(tmp_path_factory.mktemp("rights"), **settings)
    with by_password(started, "admin") as log:
        admin = log.admin()
        for topic in ("open", "shut", "hidden"):
            admin.create_topic(topic)
        rules = [
            AclRule("topic", "open", "User:alice", "read"),
            AclRule("topic", "open", "User:alice", "write"),
            AclRule("topic", "open", "User:alice", "write", permission="deny"),
            AclRule("topic", "shut", "User:alice", "describe"),
            AclRule("group", "reports-", "User:alice", "read", "prefixed"),
            AclRule("cluster", CLUSTER, "User:alice", "idempotent_write"),
            AclRule("cluster", CLUSTER, "User:alice", "describe"),
            AclRule("cluster", CLUSTER, "User:bob", "idempotent_write"),
        ]
        create_acls(admin, rules)
    yield started
    started.close()


def by_password(secured: Secured, user: str) -> Log:
    settings = secured.client("SASL_SSL", user=user)
    return connect(settings.pop("bootstrap.servers"), security=Security.from_settings(settings))


def test_what_is_allowed_is_told_and_a_denial_wins(secured: Secured) -> None:
    with by_password(secured, "alice") as log:
        assert own_rights(log.admin()) == [
            OwnRights("cluster", CLUSTER, ("describe", "idempotent_write")),
            OwnRights("topic", "open", ("read", "describe")),
            OwnRights("topic", "shut", ("describe",)),
        ]


def test_what_is_hidden_is_told_as_what_is_not_there(secured: Secured) -> None:
    with by_password(secured, "alice") as log:
        found = own_rights(log.admin(), topics=["hidden", "nowhere"], groups=["reports-daily", "secret"])
    assert found[1:] == [
        OwnRights("topic", "hidden", ()),
        OwnRights("topic", "nowhere", ()),
        OwnRights("group", "reports-daily", ("read", "describe")),
        OwnRights("group", "secret", ()),
    ]


def test_what_is_no_name_of_a_topic_is_not_told_as_no_rights(secured: Secured) -> None:
    with by_password(secured, "admin") as log, pytest.raises(KafkaError, match="INVALID_TOPIC"):
        own_rights(log.admin(), topics=["*"])


def test_rights_to_the_cluster_are_told_to_who_may_describe_it(secured: Secured) -> None:
    """Kafka's rule: to others it tells none, which is not that they have none."""
    with by_password(secured, "bob") as log:
        assert own_rights(log.admin()) == [OwnRights("cluster", CLUSTER, ())]


def test_a_super_user_may_everything(secured: Secured) -> None:
    with by_password(secured, "admin") as log:
        cluster, topic, group = own_rights(log.admin(), topics=["hidden"], groups=["secret"])
    assert {"alter", "create", "describe"} <= set(cluster.operations)
    assert {"read", "write", "delete", "alter_configs"} <= set(topic.operations)
    assert {"read", "delete", "describe"} <= set(group.operations)


def test_who_one_is_by_ones_own_settings(secured: Secured, tmp_path: Path) -> None:
    with by_password(secured, "alice") as log:
        assert login_of(log.security) == ("SCRAM-SHA-512", "User:alice")
    pair = secured.write_pair("me.pem", secured.issue("me"))
    own = {"ssl.certificate.location": pair, "ssl.key.location": pair, "ssl.ca.location": secured.authority_path}
    assert login_of(Security({"security.protocol": "SSL", **own})) == ("certificate", "User:CN=me")
    assert login_of(Security({})) == ("none", "User:ANONYMOUS")
    token = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "a.b.c"}
    assert login_of(Security(token)) == ("OAUTHBEARER", "whom the token or ticket names")
    delegated = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.scram.tokenauth": "true", "sasl.username": "t1", "sasl.password": "x"}
    (mechanism, whom) = login_of(Security({"security.protocol": "SASL_SSL", **delegated}))
    assert (mechanism, whom) == ("SCRAM-SHA-256", "the owner of the delegation token t1")
    with connect(str(tmp_path / "data")) as log:
        assert login_of(log.security) == ("owner of the data", "Owner:local")
