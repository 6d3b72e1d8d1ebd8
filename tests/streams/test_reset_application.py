"""An application that is reset begins anew: nothing of its topics, offsets and state is left; it is refused while one runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput
from logflume.streams.runtime import reset_application

from .running import embedded, read, running, until


def counting() -> lf.App:
    app = lf.App("counting")
    app.stream("words", str).group_by(lf.col.value).count().to("counts")
    return app


def test_a_reset_application_computes_everything_again(tmp_path: Path) -> None:
    with embedded(tmp_path / "log") as log:
        for topic in ("words", "counts"):
            log.admin().ensure_topic(topic)
        for word in (b"a", b"b", b"a"):
            log.producer().send("words", word).result(60)

        def counts() -> list[bytes | None]:
            return [record.value for record in read(log, "counts") if record.key == b"a"]

        with running(counting(), log, tmp_path / "state") as engine:
            until(lambda: b'{"count":2}' in counts(), engine)
            with pytest.raises(InvalidInput, match="'counting' runs: 1 member"):
                reset_application(log, counting().plan(), tmp_path / "state")
        first = len(counts())
        removed = reset_application(log, counting().plan(), tmp_path / "state")
        assert any("changelog" in topic for topic in removed)
        assert [topic for topic in log.admin().list_topics(include_internal=True) if topic.startswith("counting-")] == []
        assert not (tmp_path / "state" / "counting").exists()
        assert "counting" not in log.admin().list_groups()
        with running(counting(), log, tmp_path / "state") as engine:
            until(lambda: len(counts()) > first and b'{"count":2}' in counts()[first:], engine)
        assert b'{"count":3}' not in counts(), "two, as at first: not counted on"
        assert b'{"count":4}' not in counts()
