"""Metrics and health where others could reach them: over TLS, for users of the cluster; a probe hears whether, not what."""

import asyncio
import base64
import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import CLUSTER_NAME
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput
from logflume.log.http_login import Verdict
from logflume.log.protocol import messages
from logflume.log.server.addresses import Address
from logflume.log.server.health import Answer, HealthServer, Page
from logflume.log.server.listeners import plan_listeners, refuse_open_listeners
from logflume.log.server.page_users import plain_token

from ._embedded import keep_free
from ._secured import PASSWORDS, Secured

PAGES = "0.0.0.0:0"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("pages")
    configs = {
        "logflume.http.listener": PAGES,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "logflume.audit.log": str(directory / "audit.log"),
    }
    started = Secured(directory, **configs)
    yield started
    started.close()


def get(
    secured: Secured, path: str, user: str = "", password: str | None = None, *, authorization: str = ""
) -> tuple[int, str, str]:
    """Return (status, body, what is asked for)."""
    context = ssl.create_default_context(cafile=secured.authority_path)
    address = secured.broker._shell.http_address
    assert address is not None
    connection = http.client.HTTPSConnection("127.0.0.1", address.port, context=context, timeout=30)
    if user:
        word = PASSWORDS[user] if password is None else password
        authorization = "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers.get("WWW-Authenticate", "")


def allow_describe(secured: Secured, user: str, *, is_allowed: bool = True) -> None:
    """Give a user the right to describe the cluster, or take it back."""
    what: dict[str, Any] = {"resource_type": 4, "operation": 8, "permission_type": 3}
    if is_allowed:
        creation = messages.CreateAclsRequest.AclCreation
        rule = creation(**what, resource_name=CLUSTER_NAME, resource_pattern_type=3, principal=f"User:{user}", host="*")
        answer = secured.broker.submit("CreateAcls", 3, messages.CreateAclsRequest(creations=[rule])).result(20).results
    else:
        rule = messages.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=4, pattern_type_filter=3, operation=8)
        rule.permission_type, rule.principal_filter = 3, f"User:{user}"
        rule.resource_name_filter = rule.host_filter = None
        answer = secured.broker.submit("DeleteAcls", 3, messages.DeleteAclsRequest(filters=[rule])).result(20).filter_results
    assert answer[0].error_code == 0
    assert is_allowed or answer[0].matching_acls


def wait_until(is_so: Callable[[], bool]) -> None:
    """Pytest's time limit is what ends it."""
    while not is_so():
        time.sleep(0.02)


def test_metrics_are_for_users_who_may_describe_the_cluster(secured: Secured) -> None:
    status, body, asked = get(secured, "/metrics")
    assert (status, "logflume_" in body) == (401, False)
    assert asked.startswith("Basic realm=")
    assert get(secured, "/metrics", "admin", "wrong")[0] == 401
    assert get(secured, "/metrics", "alice")[0] == 403
    status, body, _ = get(secured, "/metrics", "admin")
    assert (status, "logflume_" in body) == (200, True)
    allow_describe(secured, "alice")
    assert get(secured, "/metrics", "alice")[0] == 200
    allow_describe(secured, "alice", is_allowed=False)
    assert get(secured, "/metrics", "alice")[0] == 403
    told = (secured.directory / "audit.log").read_text()
    assert '"mechanism":"PLAIN","allowed":false' in told
    assert not any(password in told for password in PASSWORDS.values())


def test_a_probe_hears_whether_and_not_what(secured: Secured) -> None:
    assert get(secured, "/healthz")[:2] == (200, "ok\n")
    assert get(secured, "/readyz")[:2] == (200, "ready\n")
    keep_free(secured.broker, 2**62)
    wait_until(lambda: get(secured, "/readyz")[:2] == (503, "not ready\n"))
    status, body, _ = get(secured, "/readyz", "admin")
    assert (status, "the disk is almost full" in body) == (503, True)
    assert get(secured, "/readyz", "alice")[0] == 403
    keep_free(secured.broker, -1)
    wait_until(lambda: get(secured, "/readyz")[:2] == (200, "ready\n"))


@pytest.mark.parametrize(
    "authorization",
    [
        "Basic",
        "Basic !!!",
        "Bearer x",
        "Basic " + "A" * 5000,
        "Basic " + base64.b64encode(b"admin").decode(),
        "Basic AGFkbWluAA==",
    ],
)
def test_credentials_that_are_none(secured: Secured, authorization: str) -> None:
    assert get(secured, "/metrics", authorization=authorization)[0] == 401
    assert plain_token("basic " + base64.b64encode("ü:a:b".encode()).decode()) == b"\0\xc3\xbc\0a:b"


def test_it_speaks_tls_alone_and_takes_renewed_certificates_over(secured: Secured) -> None:
    address = secured.broker._shell.http_address
    assert address is not None
    with socket.create_connection(("127.0.0.1", address.port), timeout=20) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not sock.recv(100).startswith(b"HTTP")
    issued = secured.issue("renewed", hosts=["127.0.0.1"], is_server=True)
    secured.write_pair("server.pem", issued)
    os.utime(secured.server_path, ns=(1, 1))
    context = ssl.create_default_context(cafile=secured.authority_path)

    def name() -> str:
        secured.broker._loop.call_soon_threadsafe(secured.broker._shell._refresh_security)
        with (
            socket.create_connection(("127.0.0.1", address.port), timeout=20) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
        ):
            subject: Any = (secure.getpeercert() or {})["subject"]
            return str(dict(pair for part in subject for pair in part)["commonName"])

    wait_until(lambda: name() == "renewed")


@pytest.mark.parametrize(
    ("configs", "is_refused"),
    [
        ({"logflume.http.listener": "0.0.0.0:0"}, True),
        ({"logflume.http.listener": "192.0.2.1:9404"}, True),
        ({"logflume.http.listener": "127.0.0.1:0"}, False),
        ({"logflume.http.listener": "0.0.0.0:0", "ssl.keystore.location": "x"}, False),
        ({"logflume.http.listener": "0.0.0.0:0", "listener.name.http.ssl.keystore.location": "x"}, False),
        ({}, False),
    ],
)
def test_pages_that_others_could_read_need_a_certificate(configs: dict[str, str], is_refused: bool) -> None:
    config = BrokerConfig(configs)
    if not is_refused:
        refuse_open_listeners(plan_listeners(config), config)
        return
    with pytest.raises(InvalidInput, match=r"metrics go to users only.*`logflume secure init`.*--insecure"):
        refuse_open_listeners(plan_listeners(config), config)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_page_is_for_those_alone_who_are_welcome(verdict: Verdict) -> None:
    class Users:
        async def judge(self, authorization: str, host: str) -> Verdict:
            return verdict

    async def asked() -> bytes:
        users: Any = Users()
        server = HealthServer({"/metrics": Page(lambda: Answer(b"secret"))}, users=users)
        address = await server.start(Address("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await server.close()
        return answer

    answer = asyncio.run(asked())
    assert answer.startswith(b"HTTP/1.1 %d " % verdict.value)
    assert (b"secret" in answer) == (verdict is Verdict.WELCOME)


def test_a_broker_with_open_metrics_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
    command += ["--config", "logflume.http.listener=0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "metrics go to users only" in done.stderr) == (1, True)
    assert not (tmp_path / "d").exists()
