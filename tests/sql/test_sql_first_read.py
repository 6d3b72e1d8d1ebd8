"""A query that was just made has read what was there when its statement is done: what a newcomer asks next sees it all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import logflume as lf
from logflume.log import Log, TopicPartition, connect
from logflume.sql import Message, SqlEngine
from logflume.sql.first_read import LIMIT_S, FirstRead, wait_until_read
from logflume.sql.session import Session

SALES = 4000
STREAM = "CREATE STREAM sales (shop STRING KEY, item STRING) WITH (KAFKA_TOPIC='sales', VALUE_FORMAT='JSON');"
PER_ITEM = "CREATE TABLE per_item AS SELECT item, COUNT(*) AS n FROM sales GROUP BY item;"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(tmp_path / "log") as opened:
        opened.admin().ensure_topic("sales", partitions=2)
        with opened.producer(transactional_id="all") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(SALES):
                producer.send("sales", b'{"item": "i%d"}' % (number % 7), key=b"s%d" % (number % 3))
            producer.commit_transaction()
        yield opened


def unread(log: Log, group: str) -> dict[TopicPartition, int]:
    """Return what a group has not read yet, of all topics that it reads."""
    admin = log.admin()
    offsets = admin.group_offsets(group)
    ends = admin.end_offsets(offsets)
    return {at: ends[at] - found.offset for at, found in offsets.items() if ends[at] > found.offset}


def test_a_new_table_has_read_its_topics_when_the_statement_is_done(log: Log, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    session = Session(on_read=lambda done, total: told.append((done, total)))
    with SqlEngine(log, tmp_path / "sql") as engine:
        *_, made = engine.execute(STREAM + PER_ITEM, session=session)
        (group,) = [each for each in log.admin().list_groups() if "PER_ITEM" in each]
        assert unread(log, group) == {}
        topics = {at.topic for at in log.admin().group_offsets(group)}
        assert len(topics) == 2, "those of the second stage are read too"
    assert isinstance(made, Message)
    assert made.text == "Table PER_ITEM created, running query with ID CTAS_PER_ITEM_0"
    assert {total for _, total in told} >= {SALES + 2}
    assert all(0 <= done < total for done, total in told)


def test_one_that_takes_long_is_said_to_go_on(log: Log) -> None:
    app = lf.App("never-run", log="unused")
    app.stream("sales").group_by_key().count().to("counts")
    clock_s = [0.0]

    def passes(pause_s: float) -> None:
        clock_s[0] += pause_s

    def waited(has_failed: bool, until_s: float | None = None) -> str:
        told: list[tuple[int, int]] = []
        found = wait_until_read(
            log.admin(), app.plan(), lambda *each: told.append(each), until_s=until_s,
            has_failed=lambda: has_failed, monotonic_s=lambda: clock_s[0], wait=passes,
        )  # fmt: skip
        assert set(told) == {(0, SALES + 2)}
        return found

    assert waited(has_failed=True) == "0 of 4,002 records of sales read"
    assert clock_s[0] == 0
    assert waited(has_failed=False) == "0 of 4,002 records of sales read"
    assert LIMIT_S < clock_s[0] < LIMIT_S + 1
    gone_s = clock_s[0]
    assert waited(has_failed=False, until_s=gone_s - 1) == "0 of 4,002 records of sales read"
    assert clock_s[0] == gone_s, "those before it have had the time of the request"


def test_what_is_deleted_meanwhile_is_not_waited_for(log: Log) -> None:
    app = lf.App("never-run", log="unused")
    app.stream("sales").group_by_key().count().to("counts")
    first = FirstRead(log.admin(), app.plan())
    assert first.left() == SALES + 2
    parts = [TopicPartition("sales", number) for number in range(2)]
    log.admin().delete_records(log.admin().end_offsets(parts))
    first.left()
    assert first.left() == 0
