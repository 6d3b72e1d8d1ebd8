"""For every family of operators: an application that lost its disk goes on from its changelogs as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from logflume.log import Log

from . import _family_apps as families
from . import _slice_apps as sliced
from .running import embedded
from .test_spark_families import Case, partition_of_key
from .test_spark_slices import make_records, send

RECORDS = 160
CUT = 100
SEED = 11


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with embedded(tmp_path_factory.mktemp("lost") / "log") as opened:
        yield opened


@pytest.mark.parametrize("kind", [*sliced.JOINS, *sliced.OTHERS, *families.TABLES, *families.STREAMS, *families.FOREIGN])
def test_a_lost_disk_changes_nothing(log: Log, kind: str, tmp_path: Path) -> None:
    case = Case(log, kind, tmp_path)
    names = f"{case.data}-lost", f"{case.data}-kept"
    records = [(*sent[:4], partition_of_key(sent[2]), sent[5]) for sent in make_records(SEED, RECORDS)]
    later = [sent for sent in records[CUT:] if sent[0] == "refunds" or kind not in families.FOREIGN]  # the side that answers
    send(log, case.data, records[:CUT])
    before = [case.run(name) for name in names]
    shutil.rmtree(tmp_path / names[0])
    send(log, case.data, later)
    lost, kept = (left_out + case.run(name) for left_out, name in zip(before, names, strict=True))
    if kind.startswith("global"):
        assert lost >= kept, "the table is loaded once more, its broken rows too"
    else:
        assert lost == kept
    assert case.results(names[0]) == case.results(names[1])
    assert case.results(names[0])
