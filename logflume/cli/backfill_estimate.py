"""What `logflume backfill --dry-run` prints: the job as a tree with what each stage will cost, and keys that are hot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from logflume.cli.common import print_rows, text_of

if TYPE_CHECKING:
    from logflume.streams.spark import Estimate, HotKey, StageEstimate

_COLUMNS = ("job", "tasks", "records", "MB in", "rows out", "MB out", "CPU s", "seconds", "MB memory")


def fields_of(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON can hold it."""
    hot = [asdict(each) | {"key": text_of(each.key)} for each in estimate.hot_keys]
    return {
        "stages": [asdict(stage) for stage in estimate.stages],
        "hot_keys": hot,
        "start_seconds": estimate.start_seconds,
        "hand_over": {"records": estimate.written, "seconds": estimate.hand_over_seconds},
        "seconds": estimate.seconds,
        "cores": estimate.cores,
        "sampled": estimate.sampled,
    }


def print_estimate(estimate: Estimate, *, is_assumed: bool) -> None:
    """Print it, `is_assumed`: nobody said how many cores there are."""
    where = "in this process" if estimate.cores is None else f"on {estimate.cores} cores"
    if estimate.cores is not None and is_assumed:
        where += " (assumed: --conf spark.cores.max=N says how many there are)"
    print(f"expected     {_seconds(estimate.seconds)} s {where}, from a sample of {estimate.sampled:,} offsets")
    print_rows(_COLUMNS, tree_of(estimate), as_json=False)
    for key in estimate.hot_keys:
        print(f"warning: {warning_of(key)}")


def warning_of(hot: HotKey) -> str:
    """Say what a hot key does, in a sentence."""
    return (
        f"key {text_of(hot.key)!r} of {hot.topic} has {hot.share:.0%} of the records: "
        f"its task of {hot.tasks} in stage {hot.subtopology} goes on while the others have ended"
    )


def tree_of(estimate: Estimate) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the tree: what comes last first, below each stage what it takes."""
    taken = {at for stage in estimate.stages for at in stage.stages}
    ends = [number for number in range(len(estimate.stages)) if number not in taken]
    yield ("hand-over", "", f"{estimate.written:,}", "", "", "", "", _seconds(estimate.hand_over_seconds), "")
    for number in ends:
        yield from _branch(estimate, number, "", number == ends[-1])


def _branch(estimate: Estimate, number: int, indent: str, is_last: bool) -> Iterator[tuple[Any, ...]]:
    stage = estimate.stages[number]
    yield (f"{indent}{_arm(is_last)}{stage.subtopology}, {stage.way}", *_cells(stage))
    below = indent + ("   " if is_last else "│  ")
    for place, at in enumerate(stage.stages):
        yield from _branch(estimate, at, below, place == len(stage.stages) - 1 and not stage.topics)
    for topic in stage.topics:
        yield (f"{below}{_arm(topic == stage.topics[-1])}{topic}", *[""] * (len(_COLUMNS) - 1))


def _arm(is_last: bool) -> str:
    return "└─ " if is_last else "├─ "


def _cells(stage: StageEstimate) -> tuple[Any, ...]:
    mb = [f"{size / 1e6:,.1f}" for size in (stage.in_bytes, stage.out_bytes)]
    rows = f"{stage.results + stage.entries:,}"
    times = (_seconds(stage.cpu_seconds), _seconds(stage.seconds))
    return (stage.tasks, f"{stage.records:,}", mb[0], rows, mb[1], *times, f"{stage.memory_bytes / 1e6:,.0f}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:,.0f}"
