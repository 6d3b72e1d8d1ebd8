"""Several instances of the registry over one log: one writes, the others forward; a kill loses nothing that was answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from logflume.log import TopicPartition, connect

from ._registry import Rest
from ._server_process import ServerProcess


@contextmanager
def instance(server: ServerProcess, topic: str, *, listen: str = "127.0.0.1:0") -> Iterator[tuple[Rest, subprocess.Popen[str]]]:
    """Run `logflume registry serve` over a topic; give how to call it, and its process."""
    argv = [sys.executable, "-m", "logflume", "registry", "serve", "--bootstrap", server.address, "--listen", listen]
    process = subprocess.Popen([*argv, "--topic", topic], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("registry"), line
        yield Rest(line.split()[1]), process
    finally:
        process.kill()
        process.wait()


def is_writer(rest: Rest) -> bool:
    return "logflume_registry_is_writer 1\n" in rest.client.get("/metrics").text


def fixed(n: int) -> str:
    """Return a schema that differs from all others."""
    return json.dumps({"type": "fixed", "name": f"F{n}", "size": n + 1})


@pytest.mark.slow
def test_one_writes_and_the_others_forward_and_read_their_own_writes(server: ServerProcess, topic: str) -> None:
    with instance(server, topic) as (first, process), instance(server, topic) as (second, _):
        ids = {}
        for n in range(6):
            one, other = (first, second) if n % 2 else (second, first)
            ids[n] = one.register(f"s{n}", fixed(n))
            assert one.ok("GET", f"/subjects/s{n}/versions/1")["id"] == ids[n], "who was answered reads it at once"
            assert other.register(f"s{n}", fixed(n)) == ids[n]
        assert sorted(ids.values()) == list(range(1, 7))
        assert [is_writer(first), is_writer(second)].count(True) == 1
        assert second.code("GET", "/subjects/none/versions") == (404, 40401)
        status, _ = second("POST", "/subjects/s0/versions", {"schema": '"int"'})
        assert status == 409, "a refusal comes through as it is"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert second.register("s6", fixed(6)) == 7, "the other one takes over"


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_answered(server: ServerProcess, topic: str) -> None:
    answered: dict[int, int] = {}
    with instance(server, topic) as (follower, _):
        with instance(server, topic) as (_rest, process):
            stop = threading.Event()

            def register() -> None:
                n = 0
                while not stop.is_set():
                    status, answer = follower("POST", f"/subjects/s{n}/versions", {"schema": fixed(n)})
                    if status == 200:
                        answered[n] = answer["id"]
                    n += 1

            thread = threading.Thread(target=register)
            thread.start()
            for count in (20, 40):
                while len(answered) < count:
                    thread.join(0.02)
                if count == 20:
                    process.kill()
            stop.set()
            thread.join()
        assert len(set(answered.values())) == len(answered), "no id twice"
        for n, id_ in answered.items():
            assert json.loads(follower.ok("GET", f"/schemas/ids/{id_}")["schema"])["name"] == f"F{n}"
    with instance(server, topic) as (again, _):
        assert all(again.ok("GET", f"/subjects/s{n}/versions/1")["id"] == id_ for n, id_ in answered.items())


@pytest.mark.slow
def test_the_writer_that_is_killed_comes_back_with_all_it_answered(server: ServerProcess, topic: str) -> None:
    with instance(server, topic) as (rest, process):
        address = rest.address.removeprefix("http://")
        ids = [rest.register("s", fixed(n), metadata={"properties": {"n": str(n)}}) for n in range(1)]
        rest.ok("PUT", "/config", {"compatibility": "NONE"})
        ids += [rest.register("s", fixed(n)) for n in range(1, 20)]
        process.kill()
        process.wait()
    with instance(server, topic, listen=address) as (rest, _):
        assert rest.ok("GET", "/subjects/s/versions") == list(range(1, 21))
        assert [rest.ok("GET", f"/subjects/s/versions/{n + 1}")["id"] for n in range(20)] == ids
        assert rest.ok("GET", "/config") == {"compatibilityLevel": "NONE"}
        assert rest.register("s", fixed(20)) == ids[-1] + 1


def test_records_are_in_the_form_of_the_other_registry(server: ServerProcess, topic: str) -> None:
    text = '{"type":"fixed","name":"F0","size":1}'
    with instance(server, topic) as (rest, _):
        rest.register("s", text)
        rest.ok("PUT", "/config/s", {"compatibility": "FULL"})
        rest.ok("PUT", "/mode/s", {"mode": "READONLY"})
        rest.ok("DELETE", "/mode/s")
        rest.ok("DELETE", "/subjects/s")
    with connect(server.address) as log:
        consumer = log.consumer()
        consumer.assign([TopicPartition(topic, 0)])
        found = [(r.key, r.value) for chunk in consumer.poll(timeout_s=10, max_records=100) for r in chunk.records()]
        consumer.close()
    assert found == [
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            b'{"subject":"s","version":1,"id":1,"schema":%s,"deleted":false}' % json.dumps(text).encode(),
        ),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"subject":"s","compatibilityLevel":"FULL"}'),
        (b'{"keytype":"MODE","subject":"s","magic":0}', b'{"subject":"s","mode":"READONLY"}'),
        (b'{"keytype":"MODE","subject":"s","magic":0}', None),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}', b'{"subject":"s","version":1}'),
    ]


def test_a_topic_of_the_other_registry_is_taken_over(server: ServerProcess, topic: str) -> None:
    """As Confluent's registry writes it: with an md5, with the type, without, with keys this registry does not know."""
    records = [
        ({"keytype": "NOOP", "magic": 0}, None),
        (
            {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1},
            {"subject": "a", "version": 1, "id": 5, "schema": '"int"', "deleted": False},
        ),
        (
            {"keytype": "SCHEMA", "subject": "a", "version": 2, "magic": 1},
            {
                "subject": "a",
                "version": 2,
                "id": 7,
                "md5": "x",
                "schemaType": "AVRO",
                "references": [],
                "schema": '"long"',
                "deleted": False,
            },
        ),
        ({"keytype": "ASSOC", "tenant": "default", "magic": 0}, {"anything": 1}),
        ({"keytype": "DELETE_SUBJECT", "subject": "b", "magic": 0}, {"subject": "b", "version": 3}),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FORWARD", "later": [1]}),
    ]
    with connect(server.address) as log:
        log.admin().create_topic(topic, configs={"cleanup.policy": "compact"})
        producer = log.producer()
        for key, value in records:
            producer.send(topic, None if value is None else json.dumps(value).encode(), key=json.dumps(key).encode())
        producer.send(topic, b"\xff", key=b"not a key")
        producer.flush()
        producer.close()
    with instance(server, topic) as (rest, _):
        assert rest.ok("GET", "/subjects/a/versions") == [1, 2]
        assert rest.ok("GET", "/schemas/ids/5")["schema"] == '"int"'
        assert rest.ok("GET", "/config") == {"compatibilityLevel": "FORWARD"}
        assert rest.register("c", '"string"') == 8
        assert "logflume_registry_unreadable_records_total 2\n" in rest.client.get("/metrics").text
