"""An application that is reset begins anew: nothing of its topics, offsets and state is left; it is refused while one runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import logflume.streams as lf
from logflume.log import InvalidInput, KafkaError, LogflumeError, TransportError
from logflume.streams.runtime import forget_application, members_of, reset_application

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


def test_an_application_that_runs_loses_nothing(tmp_path: Path) -> None:
    with embedded(tmp_path / "log") as log:
        for topic in ("words", "counts", "mine"):
            log.admin().ensure_topic(topic)
        with running(counting(), log, tmp_path / "state") as engine:
            until(lambda: bool(members_of(log.admin(), "counting")), engine)
            with pytest.raises(KafkaError, match="NON_EMPTY_GROUP"):
                forget_application(log, tmp_path / "state", "counting", ["mine"])
            assert "mine" in log.admin().list_topics()
            assert (tmp_path / "state" / "counting").exists()


def test_all_that_could_not_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object, topic: str) -> None:
        raise TransportError(f"no answer about {topic}")

    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "gone").write_bytes(b"a file, where a folder is expected")
    with embedded(tmp_path / "log") as log:
        monkeypatch.setattr(type(log.admin()), "delete_topic", fails)
        with pytest.raises(LogflumeError, match=r"no answer about one.*no answer about two.*folder .*gone"):
            forget_application(log, tmp_path / "state", "gone", ["one", "two"])
