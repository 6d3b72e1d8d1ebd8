"""The registry's interface over HTTP: paths, status and error codes of Confluent's registry."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log import InvalidInput, connect
from logflume.log.registry import Limits, RegistryServer

from ._registry import RECORD, Rest, order

TEXT = json.dumps(RECORD, separators=(",", ":"))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    with RegistryServer(str(tmp_path_factory.mktemp("registry") / "data"), port=0) as server:
        yield Rest(server.address)


@pytest.fixture
def subject() -> str:
    return f"s-{uuid.uuid4().hex[:10]}-value"


def test_a_schema_is_registered_once_and_found_by_id_version_guid_and_text(rest: Rest, subject: str) -> None:
    made = rest.ok("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(RECORD)})
    assert made["version"] == 1
    again = rest.ok("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(RECORD, indent=2), "schemaType": "AVRO"})
    assert again["id"] == made["id"]
    full = {"subject": subject, "version": 1, "id": made["id"], "guid": made["guid"], "schema": TEXT}
    for version in ("1", "latest", "-1"):
        assert rest.ok("GET", f"/subjects/{subject}/versions/{version}") == full
    assert rest.ok("GET", f"/subjects/{subject}/versions/1/schema") == RECORD
    assert rest.ok("POST", f"/subjects/{subject}", {"schema": json.dumps(RECORD)}) == full
    assert rest.ok("GET", f"/schemas/ids/{made['id']}") == {"guid": made["guid"], "schema": TEXT}
    assert rest.ok("GET", f"/schemas/ids/{made['id']}/schema") == RECORD
    assert rest.ok("GET", f"/schemas/guids/{made['guid']}")["schema"] == TEXT
    assert rest.ok("GET", f"/schemas/guids/{made['guid']}/ids") == [{"context": ".", "id": made["id"]}]
    assert rest.register(f"other-{subject}", RECORD) == made["id"]
    assert {subject, f"other-{subject}"} <= set(rest.ok("GET", f"/schemas/ids/{made['id']}/subjects"))
    assert {"subject": subject, "version": 1} in rest.ok("GET", f"/schemas/ids/{made['id']}/versions")


def test_an_incompatible_schema_is_refused_and_says_where(rest: Rest, subject: str) -> None:
    rest.register(subject, RECORD)
    changed = order({"name": "total", "type": "double"})
    status, answer = rest("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(changed)})
    assert (status, answer["error_code"]) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["message"]
    assert "/fields/1" in answer["message"]
    checked = rest.ok("POST", f"/compatibility/subjects/{subject}/versions?verbose=true", {"schema": json.dumps(changed)})
    assert not checked["is_compatible"]
    assert "'total' at path '/fields/1'" in checked["messages"][0]
    assert rest.ok("PUT", f"/config/{subject}", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    rest.register(subject, changed)
    assert rest.ok("POST", f"/compatibility/subjects/{subject}/versions/latest", {"schema": TEXT}) == {"is_compatible": True}


def test_deleting_is_soft_then_permanent(rest: Rest, subject: str) -> None:
    first, second = rest.register(subject, RECORD), rest.register(subject, order({"name": "x", "type": "int", "default": 0}))
    path = f"/subjects/{subject}"
    assert rest.code("DELETE", f"{path}/versions/1?permanent=true") == (404, 40407)
    assert rest.ok("DELETE", f"{path}/versions/1") == 1
    assert rest.code("DELETE", f"{path}/versions/1") == (404, 40406)
    assert rest.code("GET", f"{path}/versions/1") == (404, 40402)
    assert rest.ok("GET", f"{path}/versions/1?deleted=true")["deleted"]
    assert rest.ok("GET", f"{path}/versions") == [2]
    assert rest.ok("GET", f"{path}/versions?deleted=true") == [1, 2]
    assert rest.ok("GET", f"{path}/versions?deletedOnly=true") == [1]
    assert rest.ok("GET", f"{path}/versions?deletedAsNegative=true") == [-1, 2]
    assert rest.ok("GET", f"/schemas/ids/{first}")["schema"] == TEXT, "what was written with an id stays readable"
    assert rest.ok("DELETE", f"{path}/versions/1?permanent=true") == 1
    assert rest.code("GET", f"{path}/versions/1?deleted=true") == (404, 40402)
    assert rest.code("DELETE", f"{path}?permanent=true") == (404, 40405)
    assert rest.ok("DELETE", path) == [2]
    assert rest.code("DELETE", path) == (404, 40404)
    assert subject not in rest.ok("GET", "/subjects")
    assert subject in rest.ok("GET", "/subjects?deleted=true")
    assert rest.ok("GET", f"/subjects?deletedOnly=true&subjectPrefix={subject}") == [subject]
    assert rest.register(subject, order({"name": "x", "type": "int", "default": 0})) == second
    assert rest.ok("GET", f"{path}/versions?deleted=true") == [3], "the deleted version of the same schema gives way"
    rest.ok("DELETE", path)
    assert rest.ok("DELETE", f"{path}?permanent=true") == [3]
    assert rest.code("DELETE", path) == (404, 40401)


def test_a_schema_may_refer_to_others_which_then_stay(rest: Rest, subject: str) -> None:
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    rest.register(f"money-{subject}", money)
    uses = order({"name": "total", "type": ["null", "shop.Money"], "default": None})
    assert rest.code("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(uses)}) == (422, 42201)
    references = [{"name": "shop.Money", "subject": f"money-{subject}", "version": 1}]
    id_ = rest.register(subject, uses, references=references)
    found = rest.ok("GET", f"/schemas/ids/{id_}")
    assert found["references"] == references
    assert found["schema"].endswith('"type":["null","Money"],"default":null}]}')
    inlined = order({"name": "total", "type": ["null", money], "default": None})
    assert rest.ok("POST", f"/subjects/{subject}", {"schema": json.dumps(inlined)})["id"] == id_
    assert rest.ok("GET", f"/subjects/money-{subject}/versions/1/referencedby") == [id_]
    assert rest.code("DELETE", f"/subjects/money-{subject}/versions/1") == (422, 42206)
    assert rest.code("DELETE", f"/subjects/money-{subject}") == (422, 42206)
    rest.ok("DELETE", f"/subjects/{subject}")
    rest.ok("DELETE", f"/subjects/money-{subject}")
    assert rest.code("DELETE", f"/subjects/money-{subject}?permanent=true") == (422, 42206)


def test_modes_say_who_may_write(rest: Rest, subject: str) -> None:
    rest.register(subject, RECORD)
    assert rest.code("GET", f"/mode/{subject}") == (404, 40409)
    assert rest.ok("GET", f"/mode/{subject}?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert rest.ok("PUT", f"/mode/{subject}", {"mode": "READONLY"}) == {"mode": "READONLY"}
    other = json.dumps(order({"name": "x", "type": "int", "default": 0}))
    assert rest.code("POST", f"/subjects/{subject}/versions", {"schema": other}) == (422, 42205)
    assert rest.code("DELETE", f"/subjects/{subject}") == (422, 42205)
    assert rest.register(subject, RECORD), "what is registered already needs no writing"
    assert rest.code("PUT", f"/mode/{subject}", {"mode": "IMPORT"}) == (422, 42205)
    assert rest.code("PUT", f"/mode/{subject}", {"mode": "SOMETIMES"}) == (422, 42204)
    assert rest.ok("PUT", f"/mode/{subject}?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    taken = rest.ok("POST", f"/subjects/{subject}/versions", {"schema": '"int"', "id": 900_000, "version": 40})
    assert (taken["id"], taken["version"]) == (900_000, 40)
    clash = {"schema": '"long"', "id": 900_000, "version": 41}
    assert rest.code("POST", f"/subjects/{subject}/versions", clash) == (422, 42205)
    assert rest.ok("DELETE", f"/mode/{subject}") == {"mode": "IMPORT"}
    assert rest.code("DELETE", f"/mode/{subject}") == (404, 40401)


def test_a_mode_that_overrides_outweighs_the_subjects_own(rest: Rest) -> None:
    context = f":.o{uuid.uuid4().hex[:6]}:"
    rest.register(f"{context}s", RECORD)
    rest.ok("PUT", f"/mode/{context}s", {"mode": "READWRITE"})
    rest.ok("PUT", f"/mode/{context}", {"mode": "READONLY"})
    rest.register(f"{context}s", order({"name": "x", "type": "int", "default": 0}))
    rest.ok("PUT", f"/mode/{context}", {"mode": "READONLY_OVERRIDE"})
    assert rest.ok("GET", f"/mode/{context}s?defaultToGlobal=true") == {"mode": "READONLY_OVERRIDE"}
    third = {"schema": json.dumps(order({"name": "y", "type": "int", "default": 0}))}
    assert rest.code("POST", f"/subjects/{context}s/versions", third) == (422, 42205)
    assert rest.code("PUT", f"/mode/{context}", {"mode": "FORWARD"}) == (422, 42204), "a mode of all contexts"
    rest.ok("DELETE", f"/mode/{context}")
    rest.ok("POST", f"/subjects/{context}s/versions", third)


def test_a_context_has_ids_and_settings_of_its_own(rest: Rest, subject: str) -> None:
    context = f".c{uuid.uuid4().hex[:6]}"
    name = f":{context}:{subject}"
    assert rest.register(name, RECORD) == 1
    assert context in rest.ok("GET", "/contexts")
    assert rest.ok("GET", f"/subjects?subjectPrefix=:{context}:") == [name]
    assert rest.ok("GET", f"/contexts/{context}/subjects") == [name]
    assert rest.ok("GET", f"/contexts/{context}/subjects/{subject}/versions") == [1]
    assert rest.ok("GET", f"/schemas/ids/1?subject=:{context}:")["schema"] == TEXT
    assert rest.ok("GET", f"/subjects/{subject}/versions/1")["subject"] == name, "found in another context"
    rest.ok("PUT", f"/config/:{context}:", {"compatibility": "FORWARD"})
    assert rest.ok("GET", f"/config/{name}?defaultToGlobal=true")["compatibilityLevel"] == "FORWARD"
    assert rest.code("DELETE", f"/contexts/{context}") == (422, 42211)
    rest.ok("DELETE", f"/subjects/{name}")
    rest.ok("DELETE", f"/subjects/{name}?permanent=true")
    rest.ok("DELETE", f"/contexts/{context}")
    assert context not in rest.ok("GET", "/contexts")


def test_metadata_and_rules_are_kept_and_are_part_of_the_identity(rest: Rest, subject: str) -> None:
    rules = {"domainRules": [{"name": "positive", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "message.id > 0"}]}
    plain = rest.register(subject, RECORD)
    made = rest.ok(
        "POST",
        f"/subjects/{subject}/versions",
        {"schema": TEXT, "metadata": {"properties": {"owner": "shop"}}, "ruleSet": rules},
    )
    assert made["id"] != plain
    kept = rest.ok("GET", f"/schemas/ids/{made['id']}")
    assert kept["ruleSet"]["domainRules"][0]["expr"] == "message.id > 0"
    assert rest.ok("GET", f"/subjects/{subject}/metadata?key=owner&value=shop")["version"] == 2
    assert rest.code("GET", f"/subjects/{subject}/metadata?key=owner&value=nobody") == (404, 40403)
    bad = {"domainRules": [{"name": "1st", "mode": "WRITE", "type": "CEL"}]}
    assert rest.code("POST", f"/subjects/{subject}/versions", {"schema": TEXT, "ruleSet": bad}) == (422, 42210)
    rest.ok("PUT", f"/config/{subject}", {"overrideMetadata": {"properties": {"tier": "1"}}})
    filled = rest.ok("POST", f"/subjects/{subject}/versions", {"schema": TEXT, "metadata": {"properties": {"owner": "x"}}})
    assert filled["metadata"]["properties"] == {"owner": "x", "tier": "1"}


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/subjects/none/versions", None, (404, 40401)),
        ("GET", "/subjects/none/versions/1", None, (404, 40401)),
        ("GET", "/subjects/none/versions/0", None, (422, 42202)),
        ("GET", "/subjects/none/versions/first", None, (422, 42202)),
        ("GET", "/schemas/ids/123456789", None, (404, 40403)),
        ("GET", "/schemas/ids/99999999999999999999", None, (404, 40403)),
        ("GET", "/schemas/ids/x", None, (404, 40403)),
        ("GET", "/schemas/guids/x", None, (404, 40403)),
        ("POST", "/subjects/none", {"schema": '"int"'}, (404, 40401)),
        ("POST", "/subjects/none/versions", {"schema": "{}"}, (422, 42201)),
        ("POST", "/subjects/none/versions", {"schema": "no json"}, (422, 42201)),
        ("POST", "/subjects/none/versions", {"schema": ""}, (422, 42201)),
        ("POST", "/subjects/none/versions", {}, (422, 42201)),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "schemaType": "XML"}, (422, 42201)),
        ("POST", "/subjects/none/versions", {"schema": 3}, (422, 422)),
        ("POST", "/subjects/%00/versions", {"schema": '"int"'}, (422, 42208)),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": '"int"'}, (422, 42208)),
        ("POST", "/compatibility/subjects/none/versions/3", {"schema": '"int"'}, (404, 40401)),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, (422, 42203)),
        ("GET", "/config/none", None, (404, 40408)),
        ("DELETE", "/config/none", None, (404, 40401)),
        ("PUT", "/mode", {"mode": "FORWARD"}, (422, 42204)),
        ("GET", "/nowhere", None, (404, 404)),
        ("PATCH", "/subjects", None, (405, 405)),
        ("GET", "/exporters", None, (501, 501)),
    ],
)
def test_what_is_wrong_has_its_code(rest: Rest, method: str, path: str, body: Any, expected: tuple[int, int]) -> None:
    assert rest.code(method, path, body) == expected


def test_a_body_that_is_no_json_or_too_large_is_refused(rest: Rest) -> None:
    assert rest.client.post("/subjects/s/versions", content=b"{").status_code == 400
    assert rest.client.post("/subjects/s/versions", content=b"\xff\xfe").status_code == 400
    assert rest.client.post("/subjects/s/versions", content=b"[" * 100_000).status_code == 422
    assert rest.client.post("/subjects/s/versions", content=b" " * 5_000_000).status_code == 413
    assert rest.client.post("/subjects/s/versions", content=iter([b" " * 1_000_000] * 5)).status_code == 413


def test_a_subject_may_hold_a_slash(rest: Rest, subject: str) -> None:
    rest.register(f"a%2F{subject}", RECORD)
    assert f"a/{subject}" in rest.ok("GET", "/subjects")
    assert rest.ok("GET", f"/subjects/a%2F{subject}/versions") == [1]


def test_pages_and_prefixes(rest: Rest, subject: str) -> None:
    for n in range(5):
        rest.register(f"{subject}-{n}", RECORD)
    assert rest.ok("GET", f"/subjects?subjectPrefix={subject}&offset=1&limit=2") == [f"{subject}-1", f"{subject}-2"]
    rest.register(f"{subject}-0", order({"name": "x", "type": "int", "default": 0}))
    found = rest.ok("GET", f"/schemas?subjectPrefix={subject}&latestOnly=true")
    assert [(each["subject"], each["version"]) for each in found][:2] == [(f"{subject}-0", 2), (f"{subject}-1", 1)]
    assert len(rest.ok("GET", f"/schemas?subjectPrefix={subject}&limit=3")) == 3


def test_figures_are_served(rest: Rest) -> None:
    assert "logflume_registry_is_writer 1\n" in rest.client.get("/metrics").text


def test_a_taken_port_is_named(rest: Rest, tmp_path_factory: pytest.TempPathFactory) -> None:
    port = int(rest.address.rpartition(":")[2])
    with pytest.raises(InvalidInput, match="cannot listen on"):
        RegistryServer(str(tmp_path_factory.mktemp("other")), port=port)


def test_a_topic_that_would_lose_schemas_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = str(tmp_path_factory.mktemp("deleting"))
    with connect(data) as log:
        log.admin().create_topic("_schemas", configs={"cleanup.policy": "delete"})
        with pytest.raises(InvalidInput, match="lose schemas"):
            RegistryServer(data, port=0).start()


def test_versions_of_a_subject_are_bounded(tmp_path: Path) -> None:
    with RegistryServer(str(tmp_path / "data"), port=0, limits=Limits(versions=3)) as server:
        rest = Rest(server.address)
        rest.ok("PUT", "/config", {"compatibility": "NONE"})
        for name in ("a", "b", "c"):
            rest.register("s", {**RECORD, "name": name})
        assert rest.code("POST", "/subjects/s/versions", {"schema": json.dumps({**RECORD, "name": "d"})}) == (422, 42205)
        assert rest.register("s", {**RECORD, "name": "a"}) == 1
        rest.ok("DELETE", "/subjects/s/versions/1")
        rest.ok("DELETE", "/subjects/s/versions/1?permanent=true")
        assert rest.register("s", {**RECORD, "name": "d"}) == 4


def test_a_schema_is_found_by_its_text_and_guid_while_digests_are_still_made(tmp_path: Path) -> None:
    """Right after the start, and whatever has been prepared by then."""
    with RegistryServer(str(tmp_path / "data"), port=0) as server:
        guids = {
            n: Rest(server.address).ok("POST", f"/subjects/s{n}/versions", {"schema": fixed_of(n)})["guid"] for n in range(30)
        }
    with RegistryServer(str(tmp_path / "data"), port=0) as server:
        again = Rest(server.address)
        for n, guid in guids.items():
            assert again.ok("POST", f"/subjects/s{n}", {"schema": fixed_of(n)})["guid"] == guid
            assert again.ok("GET", f"/schemas/guids/{guid}")["schema"] == fixed_of(n)
        assert again.ok("POST", "/subjects/s3/versions", {"schema": fixed_of(3)})["version"] == 1


def fixed_of(n: int) -> str:
    return f'{{"type":"fixed","name":"F{n}","size":4}}'
