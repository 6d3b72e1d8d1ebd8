"""The life of persistent queries: what they leave, what they are planned as, pausing, replacing, failing and coming back."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logflume.log import InvalidInput, LogflumeError, TransportError, connect
from logflume.log.interfaces import Log
from logflume.sql import PushQuery, Rows, SqlEngine, StatementError, forsaken
from logflume.sql.command_log import Command, CommandLog, command_topic
from logflume.sql.running import PAUSE_MAX_S, Checked, RunningQueries, Wanted
from logflume.streams.runtime import EngineOptions, EngineState, session

SETUP = """
CREATE STREAM s (id INT KEY, n STRING, v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=2, VALUE_FORMAT='JSON');
INSERT INTO s (ROWTIME, id, n, v) VALUES (10, 1, 'a', 1); INSERT INTO s (ROWTIME, id, n, v) VALUES (20, 2, 'b', 2);
"""


@pytest.fixture
def engine(log: Log, tmp_path: Path) -> Iterator[SqlEngine]:
    with SqlEngine(log, tmp_path / "sql") as opened:
        list(opened.execute(SETUP))
        yield opened


def rows(engine: SqlEngine, text: str) -> list[tuple[Any, ...]]:
    (result,) = engine.execute(text)
    assert isinstance(result, Rows)
    return sorted(result.rows, key=repr)


def eventually(engine: SqlEngine, text: str, expected: list[tuple[Any, ...]]) -> None:
    deadline = time.monotonic() + 60
    while (found := rows(engine, text)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


def internal(log: Log) -> set[str]:
    return {t for t in log.admin().list_topics(include_internal=True) if t.endswith(("-changelog", "-repartition"))}


def eventually_internal(log: Log, count: int) -> set[str]:
    """Return the topics of queries themselves once there are so many: they come while a query starts."""
    deadline = time.monotonic() + 60
    while len(found := internal(log)) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_a_query_that_ends_takes_only_its_own_topics_along(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE TABLE jo AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM jo;", [("a", 1), ("b", 1)])
    mine = internal(log)
    assert {t.rpartition("-")[2] for t in mine} == {"changelog", "repartition"}
    others = {"logflume-sql-CTAS_JO_0-2-AGGREGATE-changelog", "logflume-sql-CTAS_JO_0-x-repartition"}
    for topic in others:
        log.admin().create_topic(topic)
    list(engine.execute("TERMINATE CTAS_JO_0;"))
    assert internal(log) == others


@pytest.mark.parametrize("query_id", ["jo-2", "a b", "x.y", "", "é"])
def test_an_id_that_could_be_taken_for_another_s_is_refused(engine: SqlEngine, query_id: str) -> None:
    list(
        engine.execute("CREATE STREAM o (id INT KEY, n STRING, v INT) WITH (KAFKA_TOPIC='o', PARTITIONS=2, VALUE_FORMAT='JSON');")
    )
    with pytest.raises(StatementError, match="alphanumeric characters and '_'"):
        list(engine.execute(f"INSERT INTO o WITH (QUERY_ID='{query_id}') SELECT * FROM s;"))


FILLED = "CREATE STREAM o (id INT KEY, n STRING, v INT) WITH (KAFKA_TOPIC='o', PARTITIONS=2, VALUE_FORMAT='JSON');"
FILL = "INSERT INTO o WITH (QUERY_ID='Q') SELECT * FROM s;"


def test_a_query_of_an_id_that_was_used_before_begins_anew(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    list(engine.execute(FILLED + FILL))
    eventually(engine, "SELECT COUNT(*) FROM o;", [(2,)])
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        list(other.execute(f"TERMINATE Q; {FILL}"))
    engine.following.catch_up()  # both commands at once
    eventually(engine, "SELECT COUNT(*) FROM o;", [(4,)])
    assert engine.application_of("Q") in log.admin().list_groups()
    assert "logflume-sql-Q" not in log.admin().list_groups(), "nothing of the first one is left"
    engine.close()
    with SqlEngine(log, tmp_path / "sql") as again:
        list(again.execute("INSERT INTO s VALUES (3, 'c', 1);"))
        eventually(again, "SELECT COUNT(*) FROM o;", [(5,)])


def test_an_engine_over_a_directory_beside_one_stops_its_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with connect("./log") as log, SqlEngine(log, "sql") as engine:
        list(engine.execute(SETUP + "CREATE TABLE counts AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
        eventually(engine, "SELECT * FROM counts;", [("a", 1), ("b", 1)])
        running = engine.following.running.engine("CTAS_COUNTS_0")
        assert running is not None
        engine.close()
        assert running.has_ended
        assert running.status().error is None


def test_the_topics_of_a_new_query_are_prepared_once(engine: SqlEngine, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[list[str]] = []
    ensure = type(log.admin()).ensure_topics

    def noted(admin: Any, wanted: Any) -> Any:
        prepared.append(sorted(wanted))
        return ensure(admin, wanted)

    monkeypatch.setattr(type(log.admin()), "ensure_topics", noted)
    list(engine.execute("CREATE TABLE counts AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    assert [len(topics) for topics in prepared] == [3], "its result, a changelog, a repartition topic"
    eventually(engine, "SELECT * FROM counts;", [("a", 1), ("b", 1)])


class Refusing:
    """What runs a query, and cannot start."""

    has_ended = False

    def __init__(self, error: LogflumeError) -> None:
        self._error = error

    def start(self) -> None:
        raise self._error


def test_a_query_whose_log_is_away_when_it_starts_has_not_failed(log: Log, tmp_path: Path) -> None:
    now_s, errors = [0.0], [TransportError("the server is away"), InvalidInput("no such topic")]
    options = EngineOptions(state_dir=tmp_path)
    no_plan: Any = lambda: None  # noqa: E731
    make: Any = lambda plan, wanted: Refusing(errors.pop(0))  # noqa: E731
    running = RunningQueries(log, options, make, monotonic_s=lambda: now_s[0])
    said = []
    while errors:
        running.keep({"Q": Wanted("q", no_plan, no_plan)})
        said.append((running.status()["Q"].state, running.status()["Q"].error))
        now_s[0] += PAUSE_MAX_S
    assert said == [(EngineState.STARTING, "the server is away"), (EngineState.FAILED, "no such topic")]


def test_what_a_query_left_and_could_not_be_removed_is_removed_later(
    engine: SqlEngine, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object, group_id: str) -> None:
        raise TransportError("the server is away")

    list(engine.execute(FILLED + FILL))
    eventually(engine, "SELECT COUNT(*) FROM o;", [(2,)])
    with monkeypatch.context() as patch, SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        patch.setattr(type(log.admin()), "delete_group", fails)
        list(other.execute("TERMINATE Q; CREATE STREAM p AS SELECT * FROM s;"))
        engine.following.catch_up()
        eventually(engine, "SELECT COUNT(*) FROM p;", [(2,)])
        assert "logflume-sql-Q" in log.admin().list_groups()
    deadline = time.monotonic() + 60
    while "logflume-sql-Q" in log.admin().list_groups() and time.monotonic() < deadline:
        engine.following.catch_up()
        time.sleep(0.05)
    assert "logflume-sql-Q" not in log.admin().list_groups()


def test_what_a_query_left_that_nobody_saw_end_is_removed_at_the_next_start(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    made = "CREATE TABLE {0} AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"
    list(engine.execute(made.format("jo") + made.format("kept") + FILLED + FILL))
    for name in ("jo", "kept"):
        eventually(engine, f"SELECT * FROM {name};", [("a", 1), ("b", 1)])
    eventually(engine, "SELECT COUNT(*) FROM o;", [(2,)])
    kept = {topic for topic in internal(log) if topic.startswith("logflume-sql-CTAS_KEPT_1-")}
    others = {"logflume-sql-CTAS_JO_0-2-AGGREGATE-changelog", "logflume-sql-CTAS_JO_0-x-repartition"}
    for topic in others:
        log.admin().create_topic(topic)
    engine.close()
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        list(other.execute(f"TERMINATE CTAS_JO_0; TERMINATE Q; {FILL} TERMINATE Q; DROP TABLE jo;"))
    assert len(internal(log)) == 6
    with SqlEngine(log, tmp_path / "sql"):
        assert internal(log) == others | kept
        assert log.admin().list_groups() == ["logflume-sql-CTAS_KEPT_1"]
        assert [each.name for each in (tmp_path / "sql" / "state").iterdir()] == ["logflume-sql-CTAS_KEPT_1"]


def test_what_is_long_removed_is_not_looked_for_query_by_query(
    engine: SqlEngine, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(engine.execute(f"{FILLED} {FILL} TERMINATE Q; {FILL} TERMINATE Q;"))
    deadline = time.monotonic() + 60
    while log.admin().list_groups() and time.monotonic() < deadline:  # a query that is ended while it joins takes a moment
        engine.following.catch_up()
        time.sleep(0.05)
    engine.close()
    asked: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("list_groups", "list_topics", "describe_group", "delete_group", "delete_topic"):
            real = getattr(type(log.admin()), name)
            patch.setattr(
                type(log.admin()), name, lambda *a, _name=name, _real=real, **k: (asked.append(_name), _real(*a, **k))[1]
            )
        with SqlEngine(log, tmp_path / "sql") as again:
            again.following.catch_up()
    assert asked == ["list_groups", "list_topics"]


def test_what_a_query_left_stays_while_somebody_runs_it(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    list(engine.execute("CREATE TABLE jo AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM jo;", [("a", 1), ("b", 1)])
    mine = internal(log)
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        list(other.execute("TERMINATE CTAS_JO_0;"))
    with SqlEngine(log, tmp_path / "third") as third:
        assert internal(log) == mine
        engine.close()
        deadline = time.monotonic() + 60
        while internal(log) and time.monotonic() < deadline:
            third.following.catch_up()
            time.sleep(0.05)
        assert internal(log) == set()
        assert log.admin().list_groups() == []


def test_what_a_push_query_of_a_killed_server_left_is_removed(
    engine: SqlEngine, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed removes nothing; nor does one whose log refuses it just then, which is how this one ends."""

    def fails(*_: object) -> None:
        raise TransportError("the server is away")

    query = "SELECT n, COUNT(*) AS c FROM s GROUP BY n EMIT CHANGES;"
    admin = log.admin()
    (live,) = engine.execute(query)
    assert isinstance(live, PushQuery)
    with live:
        assert live.poll(timeout_s=60) is not None
        (group,) = admin.list_groups()
        (killed,) = engine.execute(query)
        assert isinstance(killed, PushQuery)
        with killed:
            assert killed.poll(timeout_s=60) is not None
            (left,) = set(admin.list_groups()) - {group}
            monkeypatch.setattr("logflume.sql.push.forget_application", fails)
        monkeypatch.undo()
        others = {
            f"{name}-AGGREGATE-changelog"
            for name in ("a-logflume-sql-push.0x0123456789ab", "logflume-sql-push.2", "logflume-sql-push", f"{left}1")
        }
        for topic in others:
            admin.create_topic(topic)
        mine = {topic for topic in internal(log) if topic.startswith(f"{group}-")}
        assert left in admin.list_groups()
        assert len(internal(log)) == len(others) + 2 * len(mine)
        monkeypatch.setattr(forsaken, "LOOK_EVERY_S", 0.0)
        with SqlEngine(log, tmp_path / "other") as other:
            deadline = time.monotonic() + 60
            while internal(log) != others | mine and time.monotonic() < deadline:
                other.following.follow()
                time.sleep(0.05)
        assert internal(log) == others | mine
        assert admin.list_groups() == [group]
        list(engine.execute("INSERT INTO s VALUES (3, 'a', 1);"))
        assert any(row is not None and row.values == ("a", 2) for row in (live.poll(timeout_s=60) for _ in range(3)))
    assert internal(log) == others


def test_a_push_query_is_forsaken_only_if_nobody_is_there_at_two_looks(engine: SqlEngine, log: Log) -> None:
    """One that starts has its topics before it is in its group."""
    name = forsaken.push_application(engine.service)
    log.admin().create_topic(f"{name}-AGGREGATE-changelog")
    looks = forsaken.Forsaken(engine.service)
    times = [forsaken.LOOK_EVERY_S * count for count in (0, 0.5, 1, 1.5, 2)]
    *before, (left,) = [looks.look(log.admin(), 1_000.0 + each) for each in times]
    assert before == [[], [], [], []]
    assert left.application == name
    assert left.topics() == {f"{name}-AGGREGATE-changelog"}


def test_a_query_starts_though_reading_its_command_broke_off_behind_it(
    engine: SqlEngine, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_new = CommandLog.read_new

    def breaks_off(self: CommandLog, *, stop: int | None = None) -> Iterator[tuple[int, Command]]:
        yield from read_new(self, stop=stop)
        raise TransportError("the server is away")

    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other, engine.following.lock:
        list(other.execute("CREATE STREAM z AS SELECT * FROM s;"))
        with monkeypatch.context() as patch:
            patch.setattr(CommandLog, "read_new", breaks_off)
            with pytest.raises(TransportError):
                engine.following.catch_up()
        (query_id,) = engine.following.applied.queries
        engine.following.catch_up()
        assert engine.following.running.engine(query_id) is not None


def test_emit_final_is_pulled_as_what_has_left(engine: SqlEngine) -> None:
    list(
        engine.execute(
            "CREATE TABLE f AS SELECT n, COUNT(*) AS c FROM s WINDOW TUMBLING (SIZE 1 SECOND, GRACE PERIOD 0 SECONDS) "
            "GROUP BY n EMIT FINAL;"
            "INSERT INTO s (ROWTIME, id, n, v) VALUES (5000, 1, 'a', 1);"
            "INSERT INTO s (ROWTIME, id, n, v) VALUES (5000, 1, 'b', 1);"
        )
    )
    eventually(engine, "SELECT n, WINDOWSTART, c FROM f;", [("a", 0, 1), ("b", 0, 1)])
    assert rows(engine, "SELECT n, WINDOWSTART, c FROM f WHERE n = 'a';") == [("a", 0, 1)]


def test_queries_pause_and_resume_also_over_a_restart(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM t;", [("a", 1), ("b", 1)])
    list(engine.execute("PAUSE CTAS_T_0; INSERT INTO s VALUES (3, 'a', 1);"))
    assert rows(engine, "SHOW QUERIES;")[0][1] == "PAUSED"
    engine.close()
    with SqlEngine(log, tmp_path / "sql") as again:
        assert again.holders.local_status() == {}
        assert rows(again, "SELECT * FROM t;") == [("a", 1), ("b", 1)]
        list(again.execute("RESUME ALL;"))
        eventually(again, "SELECT * FROM t;", [("a", 2), ("b", 1)])
        list(again.execute("TERMINATE ALL;"))
        assert rows(again, "SHOW QUERIES;") == []


def test_a_query_that_fails_says_why_and_comes_back(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM t;", [("a", 1), ("b", 1)])
    engine.close()
    state = next((tmp_path / "sql" / "state").glob("*CTAS_T_0/*/*.0"))
    for file in state.iterdir():
        file.unlink()
    (state / "photo.jpg").write_bytes(b"x")
    with SqlEngine(log, tmp_path / "sql") as again:
        with pytest.raises(Exception, match="is not a state directory"):
            rows(again, "SELECT * FROM t;")
        (query,) = rows(again, "SHOW QUERIES;")
        assert query[1] == "FAILED"
        assert "is not a state directory of logflume" in query[-1]
        (state / "photo.jpg").unlink()
        (state / "LOCK").write_bytes(b"")
        (state / "000004.log").write_bytes(b"")
        again.following.running._failures.clear()
        eventually(again, "SHOW STREAMS;", rows(again, "SHOW STREAMS;"))
        eventually(again, "SELECT * FROM t;", [("a", 1), ("b", 1)])


def test_a_topic_that_others_use_is_not_deleted(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE STREAM s2 (id INT KEY, n STRING) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');"))
    list(engine.execute("CREATE STREAM o AS SELECT id, n FROM s2;"))
    with pytest.raises(StatementError, match="Could not delete the corresponding kafka topic: s: CSAS_O_0, S2 use it too"):
        list(engine.execute("DROP STREAM s DELETE TOPIC;"))
    assert "S" in engine.catalog.sources
    list(engine.execute("DROP STREAM s;"))
    assert "s" in log.admin().list_topics()


def test_a_query_may_be_replaced_where_its_state_can_be_kept(engine: SqlEngine) -> None:
    list(engine.execute("CREATE STREAM o AS SELECT id, n FROM s WHERE v > 1;"))
    eventually(engine, "SELECT id, n FROM o;", [(2, "b")])
    (done,) = engine.execute("CREATE OR REPLACE STREAM o AS SELECT id, n, v FROM s WHERE v > 5;")
    assert getattr(done, "query_id", None) == "CSAS_O_0"
    list(engine.execute("INSERT INTO s VALUES (7, 'c', 7); INSERT INTO s VALUES (3, 'd', 3);"))
    eventually(engine, "SELECT id, n, v FROM o;", [(2, "b", None), (7, "c", 7)])
    refused = {
        "CREATE OR REPLACE STREAM o AS SELECT id, v FROM s;": "changed, missing or reordered",
        "CREATE OR REPLACE TABLE o AS SELECT id, COUNT(*) AS n FROM s GROUP BY id;": "KSTREAM which is not upgradeable to KTABLE",
        "CREATE OR REPLACE STREAM o AS SELECT n, id, v FROM s PARTITION BY n;": "Key columns must be identical",
    }
    list(engine.execute("CREATE TABLE c AS SELECT id, COUNT(*) AS k FROM s GROUP BY id;"))
    refused["CREATE OR REPLACE TABLE c AS SELECT id, SUM(v) AS k FROM s GROUP BY id;"] = "Cannot upgrade"
    again = "CREATE OR REPLACE STREAM s (id INT KEY, n STRING, v INT) WITH (KAFKA_TOPIC='s', {});"
    refused[again.format("FORMAT='DELIMITED'")] = "key KAFKA; value JSON.*key DELIMITED; value DELIMITED"
    create = "CREATE OR REPLACE STREAM d (n STRING, v BIGINT) WITH (KAFKA_TOPIC='d', PARTITIONS=1, VALUE_FORMAT='DELIMITED'{});"
    list(engine.execute(create.format("")))
    refused[create.format(", VALUE_DELIMITER=';'")] = "value DELIMITED, delimiter=','.*value DELIMITED, delimiter=';'"
    refused[create.format(", TIMESTAMP='v'")] = "timestampColumn = none which is not upgradeable to `V`"
    for text, message in refused.items():
        with pytest.raises(StatementError, match=message):
            list(engine.execute(text))
    (kept,) = engine.execute("CREATE OR REPLACE TABLE c AS SELECT id, COUNT(*) AS k FROM s WHERE v < 100 GROUP BY id;")
    assert getattr(kept, "query_id", None) == "CTAS_C_2"
    list(engine.execute("INSERT INTO s VALUES (7, 'c', 700); INSERT INTO s VALUES (7, 'c', 7);"))
    eventually(engine, "SELECT k FROM c WHERE id = 7;", [(2,)])


def test_who_loses_a_race_is_told_once_and_nobody_at_later_starts(
    engine: SqlEngine, log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SqlEngine(log, tmp_path / "other", runs_queries=False) as other:
        statement = "CREATE STREAM x (id INT KEY) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON');"
        lost = Command(statement, expected=engine.following.commands.next_offset)
        list(engine.execute(statement))
        other.following.commands.append(lost)
        query = "CREATE STREAM q AS SELECT id, n FROM s;"
        list(engine.execute(query))
        prepared = Command(query.replace(" q ", " q2 "), "CSAS_Q_0", expected=engine.following.commands.next_offset - 1)
        other.following.commands.append(prepared)
    with SqlEngine(log, tmp_path / "third", runs_queries=False) as third, caplog.at_level(logging.WARNING, "logflume.sql"):
        assert third.following.problems == []
        assert "Q2" not in third.catalog.sources
        assert third.catalog.queries["CSAS_Q_0"].sink == "Q"
    assert not caplog.records


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("won", ["AS SELECT v, id FROM s PARTITION BY v", "(v INT KEY) WITH (KAFKA_TOPIC='s', FORMAT='JSON')"])
def test_a_query_that_lost_a_race_leaves_no_topics(
    engine: SqlEngine, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, won: str, is_told: bool
) -> None:
    """They are made before its command is written. `is_told`: its engine hears of it; else it has ended, and others see to it."""
    prepared: set[str] = set()
    with SqlEngine(log, tmp_path / "other") as other:
        following = other.following
        record, expected = following.record, following.commands.next_offset

        def late(command: Command, query: Checked | None) -> None:
            prepared.update(internal(log))
            list(engine.execute(f"CREATE STREAM q {won};"))
            if not is_told:
                following.commands.append(replace(command, expected=expected))
                raise KeyboardInterrupt
            record(command, query)

        monkeypatch.setattr(following, "record", late)
        with pytest.raises(StatementError if is_told else KeyboardInterrupt):
            list(other.execute("CREATE TABLE q AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
        assert {t.rpartition("-")[2] for t in prepared} == {"changelog", "repartition"}
        if not is_told:
            other.close()
        list(engine.execute("CREATE STREAM z AS SELECT id, n FROM s;"))  # has the number of the query that was not, at the latest
        eventually(engine, "SELECT id, n FROM z;", [(1, "a"), (2, "b")])  # each look takes in what others have said
        assert eventually_internal(log, 0) == set()


def test_a_query_that_would_be_planned_otherwise_does_not_run(engine: SqlEngine, log: Log, tmp_path: Path) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    commands = [command for _, command in CommandLog(log, command_topic(engine.service)).read_new()]
    plan = commands[-1].plan
    assert plan is not None
    assert plan.key == ("N STRING",)
    assert plan.value == ("C BIGINT",)
    assert list(plan.stores) == ["AGGREGATE"]
    engine.close()
    changed = msgspec.structs.replace(
        plan, stores={"AGGREGATE": "something else"}, query_id="CTAS_U_1", sink="U", writes=("GROUP-BY-KEY-repartition", "U")
    )
    text = commands[-1].statement.replace("TABLE T ", "TABLE U ").replace("TABLE `T` ", "TABLE U ")
    writer = log.producer()
    writer.send(command_topic(engine.service), Command(text, "CTAS_U_1", commands[-1].properties, changed).encode(), partition=0)
    writer.close()
    with SqlEngine(log, tmp_path / "sql") as again:
        shown = {row[0]: row for row in rows(again, "SHOW QUERIES;")}
        assert shown["CTAS_U_1"][1] == "FAILED"
        assert "was made with stores {'AGGREGATE': 'something else'}" in shown["CTAS_U_1"][-1]
        assert shown["CTAS_T_0"][1] != "FAILED"


def test_commands_are_written_with_their_plan(engine: SqlEngine) -> None:
    list(engine.execute("CREATE STREAM o AS SELECT id, n FROM s;"))
    command = Command("X", "CSAS_X_1", {"a": "b"}, engine.applied.queries["CSAS_O_0"].recorded, 7)
    assert Command.decode(command.encode(), "here") == command
    assert json.loads(command.encode())["plan"]["v"] == 1


def test_queries_that_run_side_by_side_share_no_topic_of_their_own(engine: SqlEngine, log: Log) -> None:
    list(engine.execute("CREATE STREAM r (id INT KEY, n STRING) WITH (KAFKA_TOPIC='r', PARTITIONS=2, VALUE_FORMAT='JSON');"))
    join = "SELECT s.id, s.n, r.n FROM s JOIN r WITHIN 1 HOUR ON s.n = r.n EMIT CHANGES;"
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            (push,) = engine.execute(join)
            assert isinstance(push, PushQuery)
            stack.enter_context(push)
        topics = eventually_internal(log, 8)
        assert all(t.startswith("logflume-sql-push.0x") for t in topics)
        assert Counter(t.split("-", 3)[3] for t in topics) == dict.fromkeys(
            ("LEFT-repartition", "RIGHT-repartition", "JOIN-left-changelog", "JOIN-right-changelog"), 2
        )
    assert internal(log) == set()


def test_thousands_of_keys_are_pulled_at_once(engine: SqlEngine) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM t;", [("a", 1), ("b", 1)])
    keys = ", ".join(f"'k{n}'" for n in range(3000))
    assert rows(engine, f"SELECT * FROM t WHERE n IN ({keys}, 'b');") == [("b", 1)]
    assert rows(engine, f"SELECT n FROM t WHERE n NOT IN ({keys}, 'b');") == [("a",)]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "Missing WHERE clause"),
        ("WHERE c > 1", "WHERE clause missing key column"),
        ("WHERE n = 'a' AND n IN ('a', 'b')", "cannot be combined"),
        ("WHERE n != 'a'", "must currently be '='"),
        ("WHERE ROWPARTITION = 1", "`ROWPARTITION`"),
    ],
)
def test_reads_of_whole_tables_can_be_switched_off(engine: SqlEngine, where: str, message: str) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    properties = {"ksql.query.pull.table.scan.enabled": "false"}
    with pytest.raises(StatementError, match=message):
        list(engine.execute(f"SELECT * FROM t {where};", properties))
    (found,) = engine.execute("SELECT n FROM t WHERE n < 'b';", properties)
    assert isinstance(found, Rows)
    with pytest.raises(StatementError, match="range of keys"):
        list(engine.execute("SELECT n FROM t WHERE n < 'b';", {**properties, "ksql.query.pull.range.scan.enabled": "false"}))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("n = 'a' OR n = 'b'", [("a", 1), ("b", 1)]),
        ("(n = 'a' OR n IN ('x', 'b')) AND c = 1", [("a", 1), ("b", 1)]),
        ("n = 'a' AND c > 1 OR 'b' = n AND c = 1", [("b", 1)]),
        ("n = 'a' OR n = 'a' AND c = 1", [("a", 1)]),
    ],
)
def test_keys_on_each_side_of_or_are_looked_up(engine: SqlEngine, where: str, expected: list[tuple[Any, ...]]) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    eventually(engine, "SELECT * FROM t;", [("a", 1), ("b", 1)])
    (found,) = engine.execute(f"SELECT * FROM t WHERE {where};", {"ksql.query.pull.table.scan.enabled": "false"})
    assert isinstance(found, Rows)
    assert sorted(found.rows) == expected
    assert "key(s) of its state" in found.note


@pytest.mark.parametrize("where", ["n IN ('a', NULL)", "n = CAST(NULL AS STRING)", "n = 'a' OR n IN (NULL)"])
def test_null_is_no_primary_key(engine: SqlEngine, where: str) -> None:
    list(engine.execute("CREATE TABLE t AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;"))
    with pytest.raises(StatementError, match="Primary key columns can not be NULL: "):
        list(engine.execute(f"SELECT * FROM t WHERE {where};"))


def test_tasks_are_opened_as_soon_as_they_are_assigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll in which a query learns of its partitions ends with that: here it would go on for an hour."""
    monkeypatch.setattr(session, "_IDLE_POLL_S", 3600.0)
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine:
        made = "CREATE STREAM s (v INT) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON'); INSERT INTO s VALUES (1);"
        *_, query = engine.execute(made + "SELECT v FROM s EMIT CHANGES;")
        assert isinstance(query, PushQuery)
        with query:
            row = query.poll(timeout_s=60)
        assert row is not None
        assert row.values == (1,)
