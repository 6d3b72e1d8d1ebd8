"""A running application watched: rates of its nodes in its description, a store's rows as a table in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, TopicPartition
from logflume.streams.runtime import looks, silent
from logflume.streams.runtime.peers import StoreUnavailable
from logflume.streams.runtime.positions import addresses
from logflume.streams.showing import Page, show_live
from tests.streams.running import embedded, running, send_json, until


def counting(log: Any = None) -> lf.App:
    app = lf.App("watched", log=log)
    app.stream("in", key=str).filter(lf.col.n.cast(int) > 1).group_by_key().count(name="counts").to("out")
    return app


class Notebook:
    """What IPython's display does, written down: each table, and what replaced it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, page: Any, *, display_id: bool) -> Notebook:
        assert display_id
        self.update(page)
        return self

    def update(self, page: Any) -> None:
        self.shown.append(page._repr_html_())


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found, package, module = Notebook(), ModuleType("IPython"), ModuleType("IPython.display")
    module.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


def test_a_description_says_what_leaves_each_node_and_a_notebook_shows_a_table_live(tmp_path: Path, notebook: Notebook) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        send_json(log, "in", [(f"<k{n}>", {"n": n}, n) for n in range(4)])
        app = counting(log)
        assert "rows/s" not in app.describe()
        with running(app, log, tmp_path / "state", endpoint="127.0.0.1:0") as engine:
            until(lambda: engine.status().tasks and engine.status().lag_records == 0 and engine.status().records_out, engine)
            assert "in  source: reads in; 0 rows/s" in app.describe(rates_over_s=0.01)
            assert "7 rows/s" in app.topology().describe().with_rates({"in-filter": 7.0}).svg()
            with app.query("counts") as counts:
                until(lambda: len(counts.rows()) == 2, engine)
                assert "&lt;k2&gt;" in counts._repr_html_(), "keys are text, not markup"
                send_json(log, "in", [("<k2>", {"n": 9}, 9)])
                until(lambda: counts.get("<k2>") == {"count": 2}, engine)
                counts.show(rows_max=1, every_s=0.01, looks_max=2)
    first, second = notebook.shown
    assert first == second
    assert first.startswith("<table><tr><th>key</th><th>count</th><th>time</th></tr><tr><td>&lt;k2&gt;</td><td>2</td>")
    assert first.endswith("<p>the first 1 of more</p>")


def test_rates_are_of_what_runs(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        with pytest.raises(InvalidInput, match="no instance of 'watched' answers"):
            counting(log).describe(rates_over_s=1)
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(InvalidInput, match="must be above 0"):
                counting(log).describe(rates_over_s=seconds)


def test_partitions_that_nobody_answers_for_are_told_with_who_ran_them(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=2)
        send_json(log, "in", [(f"k{n}", {"n": n}, n) for n in range(20)])
        app = counting(log)
        with running(app, log, tmp_path / "state", endpoint="127.0.0.1:0") as engine:
            until(lambda: engine.status().tasks and engine.status().lag_records == 0 and engine.status().records_out, engine)
            offsets = until(lambda: o if len(o := addresses(log.admin().group_offsets("watched"))) == 2 else None, engine)
            now, _ = next(looks(log, "watched", 1.0))
            assert silent(log, "watched", now) == {}
            (status,) = now.values()
            (kept, gone) = status["tasks"]
            half = {"i": {**status, "tasks": [kept]}}  # what one of two says while the other is dead
            (lost,) = gone["inputs"]
            partition = TopicPartition(lost["topic"], lost["partition"])
            assert silent(log, "watched", half) == {partition: offsets[partition]}


def test_a_table_that_cannot_be_read_for_a_moment_stays(notebook: Notebook) -> None:
    answers = iter(["one", StoreUnavailable("restoring"), "two", InvalidInput("no")])

    def read() -> Page:
        if isinstance(answer := next(answers), str):
            return Page(answer, "")
        raise answer

    with pytest.raises(InvalidInput):
        show_live(read, 1.0, lambda _: None, None)
    assert notebook.shown == ["one", "two"]


def test_what_cannot_be_shown_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in", partitions=1)
        with counting(log).query("counts", timeout_s=0.1) as counts:
            with pytest.raises(InvalidInput, match="for notebooks"):
                counts.show()
            for wrong in ({"rows_max": 0}, {"every_s": float("nan")}, {"looks_max": 0}):
                with pytest.raises(InvalidInput, match="of 1 or more"):
                    counts.show(**wrong)  # type: ignore[arg-type]
