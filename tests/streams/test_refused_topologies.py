"""Topologies and inputs that cannot work say so, at once or in the log, instead of doing nothing or never ending."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver
from tests.streams.running import embedded, running, send_json, until


def test_a_topic_that_feeds_itself_is_refused() -> None:
    app = lf.App("loop")
    app.stream("in").filter(col.n > 0).to("in")
    for check in (app.plan, lambda: TopologyTestDriver(app)):
        with pytest.raises(InvalidInput, match="'in' is written from what is read from it"):
            check()


def test_topics_that_feed_each_other_are_refused_and_a_chain_is_not() -> None:
    app = lf.App("loop")
    app.stream("a").group_by(col.n).count().to("b")
    app.stream("b").join(app.table("names")).to("c")
    app.plan()
    app.stream("c").merge(app.stream("d")).to("a")
    with pytest.raises(InvalidInput, match="'a' is written from"):
        app.plan()


@pytest.mark.parametrize("is_read_first", [False, True])
def test_a_topic_that_is_written_is_read_by_its_name_in_any_order(is_read_first: bool) -> None:
    app = lf.App("chain")
    if is_read_first:
        app.stream("b").group_by(col.n).count().to("c")
    app.stream("a").to("b")
    if not is_read_first:
        app.stream("b").group_by(col.n).count().to("c")
    names = [name for name in app.topology().nodes if name not in ("a", "b", "c")]
    assert [name for name in names if not name.endswith("-sink")] == ["b-by-n", "b-by-n-count"]
    driver = TopologyTestDriver(app)
    driver.input("a").send({"n": 7})
    assert driver.output("c").read()[-1].value == {"count": 1}


def test_records_without_the_key_that_is_needed_are_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "logflume.streams")
    app = lf.App("keyless")
    app.stream("orders").group_by_key().count().to("counts")
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("orders")
        send_json(log, "orders", [(None, {"n": n}, 1000) for n in range(50)])
        with running(app, log, tmp_path / "state") as engine:
            until(lambda: engine.status().dropped == {"null_key": 50}, engine)
    warnings = [record.getMessage() for record in caplog.records if "null_key" in record.getMessage()]
    assert len(warnings) == 1
    assert "group_by(...)" in warnings[0]
    declared = lf.App("keyless")
    declared.stream("orders", key=None).group_by_key().count().to("counts")
    with pytest.raises(InvalidInput, match="without a key"):
        declared.plan()
