"""Functions in Python under `logflume serve`: its SQL server plans with them, its workers run them."""

from __future__ import annotations

import json
from pathlib import Path

from ._command import free_port, run, serving, wait_until

FUNCTIONS = "from logflume.sql import scalar\n\n\n@scalar\ndef twice(number: int) -> int:\n    return number * 2\n"
CREATE = """
CREATE STREAM s (k STRING KEY, n INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');
CREATE TABLE t AS SELECT k, SUM(twice(n)) AS v FROM s GROUP BY k;
INSERT INTO s VALUES ('a', 4); INSERT INTO s VALUES ('a', 5);
"""


def test_a_server_and_its_workers_have_them(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FUNCTIONS)
    place = f"127.0.0.1:{free_port()}"
    with serving(tmp_path / "data", "--sql", place, "--functions", str(file)):
        server = ["--server", f"http://{place}"]
        run("sql", "-e", CREATE, *server)

        def rows() -> list[object]:
            return [json.loads(line) for line in run("sql", "-e", "SELECT * FROM t;", "--json", *server).stdout.splitlines()]

        wait_until(lambda: rows() == [{"K": "a", "V": 18}])
        refused = run("sql", "-e", "SHOW FUNCTIONS;", "--functions", str(file), *server, code=1)
        assert "start the server with --functions" in refused.stderr


def test_a_file_with_a_fault_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(FUNCTIONS + "oops\n")
    for command in (["serve", "--listen", f"127.0.0.1:{free_port()}"], ["sql", "-e", "SHOW TOPICS;"]):
        done = run(*command, "--data", str(tmp_path / "data"), "--functions", str(file), code=1)
        assert f"{file}:7: NameError: name 'oops' is not defined" in done.stderr
        assert not (tmp_path / "data").exists()
