"""Identities both ways round: Apache Kafka's clients on our listeners, our client on those of Apache Kafka 4.3.1."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import LoginRefused, Security, connect

from . import _kafka_java as kafka
from ._secured import PASSWORDS, Secured
from .test_client_security import first_value, split
from .test_security_tokens import AUDIENCE, ISSUER, STRANGER, published, token

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kafka.missing()), reason=kafka.missing() or "-"),
]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = [("SSL", ""), *(("SASL_SSL", mechanism) for mechanism in MECHANISMS)]
MODULES = "org.apache.kafka.common.security"
USER, PASSWORD = "alice", PASSWORDS["alice"]
ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("ours")
    (directory / "jwks.json").write_bytes(published())
    configs = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": str(directory / "jwks.json"),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": "the cluster's own secret",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:alice",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+).*$/$1/",
        "listener.name.ssl.ssl.client.auth": "required",
    }
    started = Secured(directory, **configs)
    yield started
    started.close()


@pytest.fixture(scope="module")
def theirs(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.KafkaBroker]:
    directory = tmp_path_factory.mktemp("theirs")
    keys = directory / "jwks.json"
    keys.write_bytes(published())
    sasl = "listener.name.sasl_ssl"
    configs = [
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={secured.server_path}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={secured.authority_path}",
        "listener.name.ssl.ssl.client.auth=required",
        f"{sasl}.sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f'{sasl}.plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        *(
            f"{sasl}.{mechanism.lower()}.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;"
            for mechanism in MECHANISMS
            if mechanism.startswith("SCRAM")
        ),
        f"{sasl}.oauthbearer.sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        f"{sasl}.oauthbearer.sasl.server.callback.handler.class={MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        f"{sasl}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys.as_uri()}",
        f"{sasl}.oauthbearer.sasl.oauthbearer.expected.issuer={ISSUER}",
        f"{sasl}.oauthbearer.sasl.oauthbearer.expected.audience={AUDIENCE}",
    ]
    running = kafka.KafkaBroker(
        directory,
        *configs,
        options=(*kafka.QUICK, ALLOWED + keys.as_uri()),
        listeners=("SSL", "SASL_SSL"),
        users={USER: PASSWORD},
    )
    yield running
    running.stop()


def bearer() -> str:
    """Return a token as Apache Kafka wants it: with the time it was issued."""
    return token(iat=int(time.time()))


def certificate(secured: Secured, name: str) -> str:
    return secured.write_pair(f"{name}.pem", secured.issue(name))


def java_settings(secured: Secured, protocol: str, mechanism: str, *, name: str = USER, password: str = PASSWORD) -> list[str]:
    """Return the settings of a client of Kafka's."""
    settings = [
        f"security.protocol={protocol}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={secured.authority_path}",
    ]
    if protocol == "SSL":
        return [*settings, "ssl.keystore.type=PEM", f"ssl.keystore.location={certificate(secured, name)}"]
    settings += [f"sasl.mechanism={mechanism}"]
    if mechanism == "OAUTHBEARER":
        return [
            *settings,
            f"sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            f"sasl.login.callback.handler.class={MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            f"sasl.oauthbearer.token.endpoint.url={token_path(secured).as_uri()}",
        ]
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return [*settings, f'sasl.jaas.config={MODULES}.{module} required username="{name}" password="{password}";']


def token_path(secured: Secured) -> Path:
    return secured.directory / "token.jwt"


def java(secured: Secured, main: str, protocol: str, settings: list[str], *args: str, given: str = "") -> tuple[int, str]:
    """Run a program of Kafka's with these settings; return its exit status and what it printed."""
    token_path(secured).write_text(bearer())
    file = secured.directory / "client.properties"
    file.write_text("\n".join(settings) + "\n")
    address = f"127.0.0.1:{secured.ports[protocol]}"
    command = kafka.command(
        f"{kafka.TOOLS}.{main}",
        "--bootstrap-server", address, "--command-config", str(file), *args,
        options=(*kafka.QUICK, ALLOWED + token_path(secured).as_uri()),
    )  # fmt: skip
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_their_clients_on_our_broker(secured: Secured, topic: str, protocol: str, mechanism: str) -> None:
    settings = java_settings(secured, protocol, mechanism)
    status, said = java(secured, "ConsoleProducer", protocol, settings, "--topic", topic, given="one\ntwo\n")
    assert status == 0, said
    limits = ("--max-messages", "2", "--timeout-ms", "30000", "--group", topic)
    status, said = java(
        secured, "consumer.ConsoleConsumer", protocol, settings, "--topic", topic, "--from-beginning", *limits
    )  # fmt: skip
    assert (status, said.split()[:2]) == (0, ["one", "two"]), said


def test_their_client_logs_in_by_a_delegation_token_that_it_made_here(secured: Secured) -> None:
    settings = java_settings(secured, "SASL_SSL", "SCRAM-SHA-512")
    status, said = java(secured, "DelegationTokenCommand", "SASL_SSL", settings, "--create", "--max-life-time-period", "-1")
    assert status == 0, said
    fields = next(line for line in said.splitlines() if f"User:{USER}" in line).split()
    by_token = java_settings(secured, "SASL_SSL", "SCRAM-SHA-512", name=fields[0], password=fields[1])
    by_token[-1] = by_token[-1].replace(";", ' tokenauth="true";')
    status, said = java(secured, "TopicCommand", "SASL_SSL", by_token, "--list")
    assert status == 0, said


def test_their_client_is_told_that_its_password_is_wrong(secured: Secured) -> None:
    settings = java_settings(secured, "SASL_SSL", "SCRAM-SHA-256", password="guessed")
    status, said = java(secured, "TopicCommand", "SASL_SSL", settings, "--list")
    assert status != 0
    assert "SaslAuthenticationException" in said


def own_settings(secured: Secured, theirs: kafka.KafkaBroker, protocol: str, mechanism: str) -> tuple[str, Security]:
    _, settings = split(secured.client(protocol, mechanism=mechanism))
    if protocol == "SSL":
        settings["ssl.keystore.location"] = certificate(secured, USER)
    if mechanism == "OAUTHBEARER":
        settings = {name: value for name, value in settings.items() if name not in ("sasl.username", "sasl.password")}
    address = f"127.0.0.1:{theirs.ports[protocol]}"
    return address, Security.from_settings(settings, token=bearer if mechanism == "OAUTHBEARER" else None)


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_our_client_on_their_broker(
    secured: Secured, theirs: kafka.KafkaBroker, topic: str, protocol: str, mechanism: str
) -> None:
    address, security = own_settings(secured, theirs, protocol, mechanism)
    with connect(address, security=security) as log:
        log.admin().create_topic(topic)
        with log.producer(transactional_id=topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"one")
            producer.commit_transaction()
        consumer = log.consumer(group_id=topic, read_committed=True)
        consumer.subscribe([topic])
        assert first_value(consumer) == b"one"
        consumer.close()


def test_our_client_says_what_their_broker_refuses(secured: Secured, theirs: kafka.KafkaBroker) -> None:
    for mechanism in MECHANISMS[:3]:
        _, settings = split(secured.client("SASL_SSL", mechanism=mechanism, password="guessed"))
        with pytest.raises(LoginRefused, match="refused the login"):
            connect(f"127.0.0.1:{theirs.ports['SASL_SSL']}", security=Security.from_settings(settings))
    address, security = own_settings(secured, theirs, "SASL_SSL", "OAUTHBEARER")
    stranger = Security.from_settings(security.settings, token=lambda: token(key=STRANGER))
    with pytest.raises(LoginRefused, match="refused the login"):
        connect(address, security=stranger)
