"""A step as stages: what is mapped over which rows, in which order. Runners carry them out, on Spark or in this process.

Each sub-topology is one of
- ranges, then a merge: many offset ranges of a partition at a time, then a task per partition that merges what came of them;
- merged only: its repartition topic is combined where it would be written (`forms.Forms.combined`);
- a replay: one task per partition that takes record after record; or several, each of which keeps a slice of its keys
  (`operators.slices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from logflume.streams.runtime.task import task_name
from logflume.streams.seams import Plan, SubTopology

from .forms import Forms, RangeForm, forms_of
from .partials import RangeEnd
from .ranges import OffsetRange, split
from .rows import RowKind
from .steps import RangeRunner, StepPlan, TaskRunner, region_of
from .turns import turns_of

Rows = tuple[RowKind, str]
"""Rows of one kind and name."""
Look = Callable[[str, RangeRunner, OffsetRange, int], Mapping[str, float]]
"""Tells how many entries of each store of an application a range of so many offsets gives for each, by a part of a partition."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass.

    Attributes:
        work: mapped over Arrow batches; pickles.
        slices: how many numbers of `count` take the same rows: those of partition p go to p * slices and on.
        count: without `takes`, it is given the numbers 0..count-1 in column `partition`, each once, those of a batch in order;
            else the number of partitions that what it takes is spread over by column `partition`.
        takes: rows of earlier stages.
        reads: topics that it reads itself, each task its partition; `tables`: those of which each task reads all.
        order: by which those of one partition are sorted.
        gives: rows that later stages take.
        wakes: numbers below `count` that run even if no row is for them.
    """

    subtopology: str
    work: RangeRunner | TaskRunner
    count: int
    takes: tuple[Rows, ...] = ()
    order: tuple[str, ...] = ()
    gives: tuple[Rows, ...] = ()
    is_ranged: bool = False
    slices: int = 1
    wakes: tuple[int, ...] = ()
    reads: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    @property
    def ranges(self) -> frozenset[OffsetRange]:
        """What it reads itself."""
        if isinstance(self.work, RangeRunner):
            return frozenset(wanted for _, wanted in self.work.ranges)
        return frozenset(wanted for wanted in self.work.step.ranges.values() if wanted.topic in self.reads | self.tables)

    @property
    def tasks(self) -> int:
        """How many run over all there is of a partition, each from the beginning: slices are, ranges follow each other."""
        return len({wanted.partition for wanted in self.ranges}) or 1 if self.is_ranged else self.count

    def whole(self) -> Stage:
        """Return it with its tasks not cut."""
        if self.slices == 1:
            return self
        assert isinstance(self.work, TaskRunner)
        wakes = tuple(sorted({number // self.slices for number in self.wakes}))
        return replace(self, work=replace(self.work, slices=1), count=self.count // self.slices, slices=1, wakes=wakes)

    @property
    def is_ahead(self) -> bool:
        """Whether another stage runs the same tasks, with what this one takes and more."""
        return isinstance(self.work, TaskRunner) and self.work.turn.is_ahead

    @property
    def way(self) -> str:
        """How it is computed, in words."""
        if self.is_ranged:
            return "range by range"
        if isinstance(self.work, TaskRunner) and self.work.is_merging:
            return "ranges merged"
        if self.is_ahead:
            return "record by record, ahead: what others of its circle ask for"
        return "record by record" if self.slices == 1 else f"record by record, each task in {self.slices} slices of its keys"


SLICES_MAX = 8
SLICES_FROM_RECORDS = 1_000_000
LOOK_FROM_RECORDS = 1_000_000
"""Of a shorter history a look costs more than it saves."""
ENTRIES_MAX = 0.1
"""Entries that ranges may give for each record, if they are to save time beside a replay."""
COMBINED_ENTRIES_MAX = 0.6
"""Entries that may be given in place of each record of a repartition topic, if they are to be less work."""
_BY_TIME = ("partition", "name", "time_ms", "task", "seq")
_BY_RANGE = ("partition", "task", "seq")


def stages_of(
    step: StepPlan,
    plan: Plan,
    *,
    records_per_range: int | None,
    cores: int | None,
    least: int = 0,
    slices: int | None = 1,
    look: Look | None = None,
) -> list[Stage]:
    """Return the stages of a step in the order in which they run; `records_per_range` None: replays only.

    `cores`: how many there are to be kept busy; None: in one process, which takes ranges of just that size wherever it can.
    `least`, `look`: see `worthwhile`. `slices`: of each replay that can be cut; None: see `slices_of`.
    """
    forms = forms_of(plan) if records_per_range else Forms({}, {})
    if cores is not None and records_per_range is not None:
        forms = worthwhile(forms, step, plan, records_per_range, cores, least, look)
    stages: list[Stage] = []
    subs = {sub.name: sub for sub in plan.subtopologies}
    for turn in turns_of(plan):
        sub = subs[turn.subtopology]
        if not sub.shared_topics():  # a global table that nobody joins: no task
            continue
        count = max(step.partitions[topic] for topic in sub.shared_topics())
        written = tuple((RowKind.REPARTITION, topic) for topic in turn.gives)
        form = forms.by_name.get(sub.name)
        merged = form or forms.combined_readers.get(sub.name)
        if form is not None and records_per_range is not None:
            stages.append(_range_stage(step, sub, form, forms, count, records_per_range, cores))
        if merged is not None:
            work = TaskRunner(step, turn, is_merging=True)
            stages.append(Stage(sub.name, work, count, _parts(merged), _BY_RANGE, written))
        else:
            takes = tuple((RowKind.REPARTITION, topic) for topic in turn.takes)
            is_whole = region_of(sub) is None or step.state_root or step.starts
            cut = 1 if is_whole else slices or slices_of(step, sub.shared_topics(), sub.global_topics, count, cores or 1)
            work = TaskRunner(step, turn, slices=cut)
            wakes = _wakes(step, sub, count, cut) if takes else ()
            stages.append(
                Stage(
                    sub.name,
                    work,
                    cut * count,
                    takes,
                    _BY_TIME,
                    written,
                    slices=cut,
                    wakes=wakes,
                    reads=sub.shared_topics(),
                    tables=sub.global_topics,
                )
            )
    return stages


def _wakes(step: StepPlan, sub: SubTopology, count: int, slices: int) -> tuple[int, ...]:
    """Return the slices of tasks that run whether or not a row is for them.

    Of a history all, so that each says where it stands; of a micro-batch those that have something to read from the log itself.
    """
    tasks = set(range(count))
    if step.state_root is not None:
        topics = sub.shared_topics()
        tasks &= {tp.partition for tp, whole in step.ranges.items() if tp.topic in topics and len(whole)}
    return tuple(partition * slices + each for partition in sorted(tasks) for each in range(slices))


def slices_of(step: StepPlan, topics: frozenset[str], tables: frozenset[str], partitions: int, cores: int) -> int:
    """Return into how many slices a task that reads these topics, and global tables, is cut: so many that cores are not idle.

    Each slice reads and decodes all records of its partition, so that more of them than SLICES_MAX hardly save time.
    """
    busy = len({tp.partition for tp, whole in step.ranges.items() if tp.topic in topics and len(whole)}) or partitions
    if sum(len(whole) for tp, whole in step.ranges.items() if tp.topic not in tables) < SLICES_FROM_RECORDS:
        return 1
    return max(1, min(-(-cores // busy), SLICES_MAX))


def worthwhile(forms: Forms, step: StepPlan, plan: Plan, records_max: int, cores: int, least: int, look: Look | None) -> Forms:
    """Return the forms that save time: where partitions alone leave cores idle, or entries are shuffled and not records.

    A range costs more CPU than the same records in a replay: its entries are encoded, shuffled, decoded and merged,
    and its tasks have to be prepared: so only a history of at least `least` offsets is cut, and one of which a look does not show
    that it gives entries for too many of its records.
    """
    idle, combined, refused = set[str](), dict[str, set[str]](), set[str]()
    for sub in plan.subtopologies:
        form = forms.by_name.get(sub.name)
        if form is None:
            continue
        topic = sub.program.sources[form.source]
        wholes = [whole for tp, whole in step.ranges.items() if tp.topic == topic and len(whole)]
        total = sum(map(len, wholes))
        is_idle = len(wholes) < cores and total >= least
        topics = {out.topic for out in form.outputs.values()} & forms.combined.keys()
        if look is not None and total >= LOOK_FROM_RECORDS and (is_idle or topics):
            work = RangeRunner(step, sub.name, (), frozenset(topics))
            seen = look(plan.application, work, max(wholes, key=len), evenly(total, records_max, cores))
            is_idle = is_idle and _entries_of(form, seen) <= ENTRIES_MAX
            refused |= {each for each in topics if _entries_of(forms.combined[each], seen) > COMBINED_ENTRIES_MAX}
        if is_idle:
            idle.add(sub.name)
        combined[sub.name] = topics
    kept = {name: form for name, form in forms.by_name.items() if name in idle or combined.get(name, set()) - refused}
    written = {out.topic for form in kept.values() for out in form.outputs.values()} - refused
    return Forms(kept, {topic: form for topic, form in forms.combined.items() if topic in written})


def _entries_of(form: RangeForm, seen: Mapping[str, float]) -> float:
    return sum(seen.get(store, 0.0) for store in form.merges)


def _range_stage(
    step: StepPlan, sub: SubTopology, form: RangeForm, forms: Forms, count: int, records_max: int, cores: int | None
) -> Stage:
    topic = sub.program.sources[form.source]
    total = sum(len(whole) for tp, whole in step.ranges.items() if tp.topic == topic)
    records = records_max if cores is None else evenly(total, records_max, cores)
    ranges = ranges_of(step, topic, count, records)
    repartition = {out.topic for out in form.outputs.values() if out.is_repartition}
    gives = [*_parts(form), *((RowKind.REPARTITION, each) for each in repartition - forms.combined.keys())]
    for each in repartition & forms.combined.keys():
        gives += _parts(forms.combined[each])
    work, reads = RangeRunner(step, sub.name, ranges, frozenset(repartition & forms.combined.keys())), frozenset({topic})
    return Stage(sub.name, work, len(ranges), gives=tuple(gives), is_ranged=True, reads=reads)


def evenly(total: int, records_max: int, cores: int) -> int:
    """Return how many offsets a range takes for all cores to be done at a time: of so many in all, at most `records_max`.

    Where there are many cores a range is not shorter than a quarter of that: each gives an entry of each of its keys.

    >>> evenly(5_000_000, 1_000_000, 2), evenly(5_000_000, 1_000_000, 8), evenly(5_000_000, 1_000_000, 64)
    (833334, 625000, 250000)
    """
    rounds = max(-(-total // (records_max * cores)), 1)
    return max(-(-total // (rounds * cores)), -(-records_max // 4))


def _parts(form: RangeForm) -> tuple[Rows, ...]:
    return (*((RowKind.PARTIAL, store) for store in form.merges), (RowKind.RANGE, form.subtopology))


def ranges_of(step: StepPlan, topic: str, count: int, records: int) -> tuple[tuple[int, OffsetRange], ...]:
    """Return the ranges of a topic with their numbers in their partition; an empty partition has one, empty, for its end."""
    found: list[tuple[int, OffsetRange]] = []
    for partition in range(count):
        wholes = [whole for tp, whole in step.ranges.items() if (tp.topic, tp.partition) == (topic, partition)]
        for whole in wholes or [OffsetRange(topic, partition, 0, 0)]:
            found += enumerate(split(whole, records) or [whole])
    return tuple(found)


def times_before(
    step: StepPlan, plan: Plan, stage: Stage, ends: Iterable[tuple[int, int, RangeEnd]]
) -> Mapping[tuple[int, int], int]:
    """Return (source partition, number of the range) -> the largest timestamp before that range, -1 for none.

    `ends`: source partition, number and end of each range of a stage.
    """
    sub = next(each for each in plan.subtopologies if each.name == stage.subtopology)
    before: dict[tuple[int, int], int] = {}
    times: dict[int, int] = {}
    for partition, number, end in sorted(ends, key=lambda each: each[:2]):
        if partition not in times:
            start = step.starts.get(task_name(sub, partition))
            times[partition] = max(start.input_times_ms.values(), default=-1) if start else -1
        before[partition, number] = times[partition]
        times[partition] = max(times[partition], end.time_ms)
    return before
