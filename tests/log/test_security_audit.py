"""The audit log: every login, denial and change, who and from where, and nothing that is secret."""

import json
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from logflume.log.protocol import messages
from logflume.log.server.auditfile import AuditFile

from ._secured import PASSWORDS, Secured
from ._wire import Wire, create_topic_request
from .test_security_logins import log_in


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("audit")
    configs = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "logflume.audit.log": str(directory / "audit.jsonl"),
    }
    started = Secured(directory, **configs)
    yield started
    started.close()


def lines(secured: Secured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (secured.directory / "audit.jsonl").read_text().splitlines()]


def test_logins_changes_and_denials_are_written(secured: Secured, topic: str) -> None:
    before = len(lines(secured))
    with Wire(secured.ports["SASL_PLAINTEXT"]) as admin, Wire(secured.ports["SASL_PLAINTEXT"]) as alice:
        log_in(admin, "admin", PASSWORDS["admin"])
        log_in(alice, "alice", PASSWORDS["alice"])
        for wire in (admin, alice):
            wire.call(create_topic_request(topic, 1), 7)
        alice.call(messages.MetadataRequest(topics=None), 12)  # leaves out what she may not see: no denial
        named = messages.MetadataRequest.MetadataRequestTopic(name=topic)
        alice.call(messages.MetadataRequest(topics=[named]), 12)
        alice.call(messages.AlterUserScramCredentialsRequest(), 0)
    with Wire(secured.ports["SASL_PLAINTEXT"]) as stranger:
        log_in(stranger, "alice", "hunter2-is-wrong")
    found = [
        line for line in lines(secured)[before:] if line["api"] != "CreateTopics" or line["allowed"] or line["on"] == [topic]
    ]
    shape = [(each["api"], each.get("principal"), each["allowed"], each.get("operation")) for each in found]
    assert ("login", "User:admin", True, None) in shape
    assert ("login", None, False, None) in shape
    assert ("CreateTopics", "User:admin", True, None) in shape
    assert ("CreateTopics", "User:alice", False, "create") in shape
    assert ("Metadata", "User:alice", False, "describe") in shape
    assert ("AlterUserScramCredentials", "User:alice", False, "alter") in shape
    assert sum(api == "Metadata" for api, *_ in shape) == 1
    refused = next(
        each for each in found if each["api"] == "CreateTopics" and each["principal"] == "User:alice" and each["allowed"]
    )
    assert refused["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert all(each["host"] == "127.0.0.1" for each in found)


def test_no_secret_is_written_and_the_file_is_its_owner_s(secured: Secured) -> None:
    text = (secured.directory / "audit.jsonl").read_text()
    assert "AlterUserScramCredentials" in text
    assert not any(password in text for password in (*PASSWORDS.values(), "hunter2"))
    assert stat.S_IMODE((secured.directory / "audit.jsonl").stat().st_mode) == 0o600


def test_old_files_are_kept_in_a_bounded_number(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logflume.log.server.auditfile.MAX_FILE_BYTES", 1000)
    file = AuditFile(str(tmp_path / "a"))
    for _ in range(1000):
        file.write("x" * 100)
    file.close()
    assert len(list(tmp_path.iterdir())) == 11
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
