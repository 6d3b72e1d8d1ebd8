"""Users of the registry: who is let in, and what each may see and change."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from logflume.log import InvalidInput, connect
from logflume.log.client import check_login
from logflume.log.registry import RegistryError, RegistryServer, Tls, UserFile
from logflume.log.registry.client import Refused, RegistryClient
from logflume.log.schemas import FormatSpec, RegistryRefused, registry_at, schema_type
from logflume.log.security.issuing import issue, make_authority

from ._registry import RECORD, Rest
from ._secured import NOW, PASSWORDS, Secured

USERS = """
[admin]
password = "root"
admin = true
[ada]
password = "pw:with:colons"
read = ["shared-*"]
write = ["ada-*"]
[robot]
token = "t0ken"
read = ["*"]
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "users.toml").write_text(USERS)
    with RegistryServer(str(folder / "data"), port=0, users=UserFile(folder / "users.toml")) as server:
        admin = rest(server.address, "admin", "root")
        for subject in ("ada-value", "shared-value", "bob-value"):
            admin.register(subject, {**RECORD, "name": subject.partition("-")[0]})
        yield server.address


def rest(address: str, user: str, password: str) -> Rest:
    made = Rest(address)
    made.client = httpx.Client(base_url=address, auth=(user, password), timeout=40, trust_env=False)
    return made


def test_nobody_is_let_in_without_a_name_that_is_known(address: str) -> None:
    for auth in (None, ("ada", "wrong"), ("", ""), ("nobody", "pw:with:colons")):
        answer = httpx.get(f"{address}/subjects", auth=auth, trust_env=False)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 401)
        assert "Basic" in answer.headers["www-authenticate"]


def test_a_user_sees_and_changes_what_the_rights_name(address: str) -> None:
    ada = rest(address, "ada", "pw:with:colons")
    assert ada.ok("GET", "/subjects") == ["ada-value", "shared-value"]
    assert {each["subject"] for each in ada.ok("GET", "/schemas")} == {"ada-value", "shared-value"}
    assert ada.register("ada-more", RECORD)
    for method, path, body in (
        ("POST", "/subjects/shared-value/versions", {"schema": '"string"'}),
        ("DELETE", "/subjects/shared-value", None),
        ("PUT", "/config/shared-value", {"compatibility": "NONE"}),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/mode", {"mode": "READONLY"}),
        ("DELETE", "/contexts/eu", None),
        ("GET", "/subjects/bob-value/versions", None),
        ("GET", "/subjects/bob-value/versions/1/schema", None),
        ("POST", "/subjects/bob-value", {"schema": '"string"'}),
        ("POST", "/compatibility/subjects/bob-value/versions", {"schema": '"string"'}),
        ("GET", "/contexts/.eu/subjects/bob-value/versions", None),
    ):
        assert ada.code(method, path, body) == (403, 40301), (method, path)
    assert ada.ok("POST", "/compatibility/subjects/shared-value/versions", {"schema": '"string"'})["is_compatible"] is False
    assert ada.ok("GET", "/config")["compatibilityLevel"] == "BACKWARD"
    assert ada.ok("PUT", "/config/ada-value", {"compatibility": "FULL"}) == {"compatibility": "FULL"}


def test_an_id_shows_only_what_its_user_may_read(address: str) -> None:
    admin, ada = rest(address, "admin", "root"), rest(address, "ada", "pw:with:colons")
    ids = {name: admin.ok("GET", f"/subjects/{name}/versions/1") for name in ("shared-value", "bob-value")}
    assert ada.ok("GET", f"/schemas/ids/{ids['shared-value']['id']}")["schema"] == ids["shared-value"]["schema"]
    assert ada.code("GET", f"/schemas/ids/{ids['bob-value']['id']}") == (404, 40403)
    assert ada.code("GET", f"/schemas/guids/{ids['bob-value']['guid']}") == (404, 40403)


def test_clients_of_ours_take_the_address_or_the_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = address.replace("http://", "http://ada:pw%3Awith%3Acolons@")
    with RegistryClient(named) as client:
        assert client.call("GET", "subjects", "ada-value", "versions") == [1]
    spec = FormatSpec("AVRO", registry=named, subject="shared-value")
    assert [column.name for column in schema_type(spec).fields] == ["id"]
    monkeypatch.setenv("LOGFLUME_REGISTRY_AUTH", "bearer t0ken")
    with RegistryClient(address) as client:
        assert client.call("GET", "subjects", "bob-value", "versions") == [1]
        with pytest.raises(Refused, match="denied operation Write"):
            client.call("DELETE", "subjects", "bob-value")
    with pytest.raises(RegistryRefused, match="denied operation Write"):
        registry_at(f"{address}/").register("bob-value", "AVRO", '"string"')
    monkeypatch.setenv("LOGFLUME_REGISTRY_AUTH", "secret")
    with pytest.raises(InvalidInput, match="bearer TOKEN"):
        RegistryClient(address)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ada]\nread = ['*']", "neither password nor token"),
        ("[ada]\npassword = 'x'\nrights = 1", "rights"),
        ("[ada]\npassword = 'x'\nread = [1]", "ada.read"),
        ("ada = 1", "table"),
        ("", "no users"),
        ("[ada", "cannot read the users"),
    ],
)
def test_a_file_of_users_that_says_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        UserFile(path)


def test_https_is_spoken_and_instances_trust_each_other(tmp_path: Path) -> None:
    authority = make_authority("Test authority", now=NOW)
    pair = issue(authority, "registry", now=NOW, hosts=["127.0.0.1"], is_server=True)
    paths = {"ca": authority.certificate_pem, "certificate": pair.certificate_pem, "key": pair.key_pem}
    for name, content in paths.items():
        (tmp_path / name).write_bytes(content)
    tls = Tls(str(tmp_path / "certificate"), str(tmp_path / "key"), str(tmp_path / "ca"))
    with (
        connect(str(tmp_path / "data")) as log,
        RegistryServer(str(log.where), port=0, tls=tls) as first,
        RegistryServer(str(log.where), port=0, tls=tls) as second,
    ):
        assert first.address.startswith("https://")
        for n, server in enumerate((first, second)):  # one of them forwards to the other
            client = Rest(server.address)
            client.client = httpx.Client(base_url=server.address, verify=tls.trusted(), timeout=40, trust_env=False)
            assert client.register(f"s{n}", {**RECORD, "name": f"R{n}"}) == n + 1
        with pytest.raises(httpx.ConnectError, match="certificate"):
            httpx.get(first.address, trust_env=False)
    with pytest.raises(InvalidInput, match="cannot be used"):
        RegistryServer(str(tmp_path / "data"), port=0, tls=Tls(str(tmp_path / "ca"), str(tmp_path / "key")))


OF_CLUSTER = """
[admin]
password = "root"
admin = true
[alice]
write = ["alice-*"]
["*"]
read = ["shared-*"]
"""


def test_a_registry_that_strangers_reach_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without users or without TLS it stays on this machine, unless somebody says so, which is said aloud."""
    (tmp_path / "users.toml").write_text(USERS)
    users = UserFile(tmp_path / "users.toml")
    data = str(tmp_path / "data")
    with pytest.raises(InvalidInput, match=r"no users and no TLS.*--users FILE.*`logflume cert issue NAME --host HOST`"):
        RegistryServer(data, host="0.0.0.0", port=0)
    with pytest.raises(InvalidInput, match=r"it has no TLS.*--tls-certificate.*--insecure"):
        RegistryServer(data, host="", port=0, users=users)
    with RegistryServer(data, host="0.0.0.0", port=0, is_insecure=True):
        pass
    assert "insecure: the schema registry on 0.0.0.0" in caplog.text


def test_users_of_the_cluster_have_rights_in_the_registry(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(OF_CLUSTER)
    cluster = Secured(tmp_path)
    own = str(cluster.broker.addresses[-1])
    users = UserFile(tmp_path / "users.toml", login=partial(check_login, own))
    try:
        with RegistryServer(own, port=0, users=users) as server:
            rest(server.address, "admin", "root").register("shared-value", RECORD)
            alice, bob = (rest(server.address, user, PASSWORDS[user]) for user in ("alice", "bob"))
            alice.register("alice-value", RECORD)
            assert alice.ok("GET", "/subjects") == ["alice-value"]
            assert bob.ok("GET", "/subjects") == ["shared-value"]
            assert bob.code("POST", "/subjects/shared-value/versions", {"schema": '"string"'}) == (403, 40301)
            for user, password in (("alice", PASSWORDS["bob"]), ("*", "x"), ("nobody", "x"), ("admin", "wrong")):
                assert rest(server.address, user, password).code("GET", "/subjects") == (401, 401)
    finally:
        cluster.close()


def test_what_the_broker_said_counts_for_a_minute(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(OF_CLUSTER)
    now, asked, right = [0.0], [], [True]

    def login(user: str, password: str) -> bool:
        asked.append((user, password))
        return right[0]

    users = UserFile(tmp_path / "users.toml", login=login, monotonic_s=lambda: now[0])
    header = b"Basic " + b64encode(b"ada:pw:x")
    for at_s in (0.0, 59.0, 61.0):
        now[0] = at_s
        assert asyncio.run(users.rights(header)).user == "ada"
    assert asked == [("ada", "pw:x")] * 2
    now[0], right[0] = 125.0, False
    with pytest.raises(RegistryError, match="Unauthorized"):
        asyncio.run(users.rights(header))
    with pytest.raises(RegistryError, match="Unauthorized"):
        asyncio.run(users.rights(b"Bearer ada:pw:x"))


def test_without_a_broker_to_ask_users_need_passwords(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(OF_CLUSTER)
    with pytest.raises(InvalidInput, match="alice has neither password nor token"):
        UserFile(tmp_path / "users.toml")
    (tmp_path / "users.toml").write_text('["*"]\npassword = "x"\n')
    with pytest.raises(InvalidInput, match="stands for users of the cluster"):
        UserFile(tmp_path / "users.toml", login=lambda *_: True)
