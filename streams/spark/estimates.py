"""What a backfill will cost, from a sample of its inputs: stage by stage records, bytes, CPU, time and memory; keys that are hot.

The sample (the last offsets of each partition, small tables whole) goes through the stages of the job in this process; nothing
is written to the log. CPU grows with the records read. Rows grow by the power by which they grew from half of the sample to all
of it: entries of an aggregate by less than the records, those of a filter in step with them.
"""

from __future__ import annotations

import math
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from logflume.log import Chunk, Log, TopicPartition, connect
from logflume.streams.runtime.topics import count_partitions
from logflume.streams.seams import Plan, SubTopology

from .backfill import BackfillPlan
from .local import Tables
from .looks import Looks
from .ranges import OffsetRange, reachable
from .replay import MEMORY_BYTES
from .rows import RowKind
from .runner import RANGES_FROM_RECORDS, RECORDS_PER_RANGE
from .sharing import JobStage, Shared, share
from .stages import Rows, Stage, ranges_of, stages_of
from .steps import RangeRunner, StepPlan, prepare_kernels

SAMPLE_RECORDS = 60_000
TABLE_SAMPLE_RECORDS = 100_000
HOT_FROM_RECORDS = 200
"""A smaller sample does not tell a hot key from chance."""
HOT_KEYS_MAX = 3
"""Shown of each stage."""
HAND_OVER_RECORDS_PER_S = 290_000
"""Of one core of Spark, where the broker has cores of its own (`benchmarks.spark state`)."""
ENTRY_OVERHEAD_BYTES = 260
"""Of an entry in memory beside its key and value, as the stores count it for objects; columns take less."""
GROWTH_MAX = 2.0
"""A join of two streams grows with the square of its records as long as all of the sample is in one window."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with so large a share of a stage's records that its task works while the others have ended."""

    subtopology: str
    topic: str
    key: bytes | None
    share: float
    tasks: int


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage.

    Attributes:
        reads: source topics, and (stage, rows) of earlier ones, by their places in the list of stages.
        records: what it takes in, and `in_bytes` their keys and values; those of a global table count in each task.
        results, entries: rows for result topics and changelogs; `out_bytes`: keys and values of all rows that it gives.
        memory_bytes: of the process of one of its tasks.
    """

    subtopology: str
    way: str
    tasks: int
    topics: tuple[str, ...]
    stages: tuple[int, ...]
    records: int
    in_bytes: int
    results: int
    entries: int
    out_bytes: int
    cpu_seconds: float
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The whole job.

    Attributes:
        sampled: offsets that were read to know it.
        cores: None: one process without Spark.
        start_seconds: until a process has its kernels; Spark's own start comes on top.
    """

    stages: tuple[StageEstimate, ...]
    hot_keys: tuple[HotKey, ...]
    sampled: int
    cores: int | None
    start_seconds: float

    @property
    def written(self) -> int:
        """Records that the hand-over writes."""
        return sum(stage.results + stage.entries for stage in self.stages)

    @property
    def hand_over_seconds(self) -> float:
        """Time of the hand-over."""
        return self.written / (HAND_OVER_RECORDS_PER_S * (self.cores or 1))

    @property
    def seconds(self) -> float:
        """Time of everything once Spark has started."""
        return self.start_seconds + sum(stage.seconds for stage in self.stages) + self.hand_over_seconds


@dataclass(frozen=True, slots=True)
class ReadOnce:
    """Topics that are read once for several applications."""

    topics: tuple[str, ...]
    applications: tuple[str, ...]


def estimate_backfill(
    backfill: BackfillPlan, *, cores: int | None, sample_records: int = SAMPLE_RECORDS, memory_bytes: int = MEMORY_BYTES
) -> Estimate:
    """Run a sample of a backfill and return what all of it will cost. Changes nothing; the application's functions are called.

    Args:
        cores: of the cluster; None: the job runs in this process, without Spark.
        sample_records: at most so many offsets of all streams.
    """
    ((found,), _) = estimate_together([backfill], cores=cores, sample_records=sample_records, memory_bytes=memory_bytes)
    return found


def estimate_together(
    backfills: Sequence[BackfillPlan],
    *,
    cores: int | None,
    sample_records: int = SAMPLE_RECORDS,
    memory_bytes: int = MEMORY_BYTES,
) -> tuple[list[Estimate], list[ReadOnce]]:
    """Return what each of several costs that are computed together, and what they read once: that counts with the first of them.

    Args: see `estimate_backfill`.
    """
    plans = [backfill.plan for backfill in backfills]
    estimates = []
    with connect(backfills[0].where) as log:
        steps = [_step_of(log, *each, memory_bytes) for each in zip(backfills, plans, strict=True)]
        alone = [_stages_of(step, plan, cores) for step, plan in zip(steps, plans, strict=True)]
        staged, readings = share(alone, cores or 1)
        along = _read_along(staged, readings)
        for number, (step, plan, stages) in enumerate(zip(steps, plans, staged, strict=True)):
            own = {place: each for (job, place), each in along.items() if job == number}
            estimates.append(_estimated(log, step, plan, stages, own, cores, sample_records))
    return estimates, [_told(each, plans, staged) for each in readings]


def _estimated(
    log: Log,
    step: StepPlan,
    plan: Plan,
    stages: Sequence[Stage],
    along: Mapping[int, _Along],
    cores: int | None,
    sample_records: int,
) -> Estimate:
    tables = _table_topics(plan)
    whole = replace(step, ranges=sample_of(step.ranges, tables, sample_records))
    half = replace(step, ranges=sample_of(step.ranges, tables, max(sample_records // 2, 1)))
    begun_s = time.process_time()
    prepare_kernels(max(map(len, step.ranges.values()), default=0))
    start_s = time.process_time() - begun_s
    few, many = (_Measured.of(each, plan, stages) for each in (half, whole))
    read = {topic: _Read.of(log, whole, topic) for topic in _topics(step.ranges)}
    guess = _Guess(step, plan, stages, half, whole, few, many, read, cores, along)
    sampled = sum(map(len, whole.ranges.values()))
    return Estimate(tuple(guess.stages()), tuple(guess.hot_keys()), sampled, cores, start_s)


@dataclass(frozen=True, slots=True)
class _Along:
    """How a stage shares what it reads: `topics` of it are read by another one for it, and each task is dealt to `tasks`."""

    topics: frozenset[str]
    tasks: int


def _read_along(staged: Sequence[Sequence[Stage]], readings: Sequence[Shared]) -> dict[JobStage, _Along]:
    found = {}
    for each in readings:
        read: list[frozenset[str]] = [frozenset()] * each.tasks
        for at, (number, place) in enumerate(each.places):
            part, own = at % each.tasks, staged[number][place].reads
            found[number, place] = _Along(own & read[part], each.tasks)
            read[part] |= own
    return found


def _told(shared: Shared, plans: Sequence[Plan], staged: Sequence[Sequence[Stage]]) -> ReadOnce:
    readers = Counter(topic for number, place in shared.places for topic in staged[number][place].reads)
    topics = sorted(topic for topic, count in readers.items() if count > 1)
    return ReadOnce(tuple(topics), tuple(plans[number].application for number, _ in shared.places))


def _step_of(log: Log, backfill: BackfillPlan, plan: Plan, memory_bytes: int) -> StepPlan:
    partitions, where = count_partitions(plan, log.admin()), reachable(log)
    return StepPlan(
        backfill.load_plan, where, backfill.ranges, partitions, {}, memory_bytes=memory_bytes, archive=backfill.archive
    )


def _stages_of(step: StepPlan, plan: Plan, cores: int | None) -> list[Stage]:
    if cores is None:
        return stages_of(step, plan, records_per_range=None, cores=None)
    size, least = RECORDS_PER_RANGE, RANGES_FROM_RECORDS
    return stages_of(step, plan, records_per_range=size, cores=cores, least=least, slices=None, look=Looks())


def _table_topics(plan: Plan) -> frozenset[str]:
    return frozenset(sub.program.sources[node] for sub in plan.subtopologies for node in sub.table_sources.values())


def _topics(ranges: Mapping[TopicPartition, OffsetRange]) -> list[str]:
    return sorted({tp.topic for tp in ranges})


def sample_of(
    ranges: Mapping[TopicPartition, OffsetRange], tables: frozenset[str], records: int
) -> dict[TopicPartition, OffsetRange]:
    """Return the last offsets of each partition: of streams `records` in all, shared as they are long; much of each table.

    >>> t = {TopicPartition("t", p): OffsetRange("t", p, 0, n) for p, n in enumerate((300, 100))}
    >>> [(r.start, r.end) for r in sample_of(t, frozenset(), 40).values()]
    [(270, 300), (90, 100)]
    """
    total = sum(len(whole) for tp, whole in ranges.items() if tp.topic not in tables)
    found = {}
    for tp, whole in ranges.items():
        wanted = TABLE_SAMPLE_RECORDS if tp.topic in tables else math.ceil(len(whole) * records / max(total, 1))
        found[tp] = OffsetRange(tp.topic, tp.partition, max(whole.start, whole.end - wanted), whole.end)
    return found


@dataclass(slots=True)
class _Read:
    """What was read of a topic: records, bytes of keys and values, CPU that reading took, and how often each key came."""

    records: int = 0
    size_bytes: int = 0
    cpu_seconds: float = 0.0
    keys: Counter[bytes | None] = field(default_factory=Counter)

    @classmethod
    def of(cls, log: Log, step: StepPlan, topic: str) -> _Read:
        found = cls()
        for tp, wanted in step.ranges.items():
            if tp.topic == topic:
                chunks = step.read(log, wanted)
                while (chunk := found._timed(chunks)) is not None:
                    found.records += len(chunk)
                    found.size_bytes += int(chunk.key_sizes.clip(0).sum()) + int(chunk.value_sizes.clip(0).sum())
                    found.keys.update(chunk.keys())
        return found

    def _timed(self, chunks: Iterator[Chunk]) -> Chunk | None:
        begun_s = time.process_time()
        chunk = next(chunks, None)
        self.cpu_seconds += time.process_time() - begun_s
        return chunk


@dataclass(slots=True)
class _Measured:
    """A sample's way through the stages: CPU seconds of each, rows and bytes that came of it, keys of repartition topics."""

    cpu: list[float] = field(default_factory=list)
    rows: list[Counter[Rows]] = field(default_factory=list)
    sizes: list[Counter[Rows]] = field(default_factory=list)
    keys: dict[str, Counter[bytes | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: StepPlan, plan: Plan, stages: Sequence[Stage]) -> _Measured:
        found = cls()
        tables = Tables(sample, plan)
        for stage in stages:
            found._run(on_sample(stage, sample), tables)
        return found

    def _run(self, stage: Stage, tables: Tables) -> None:
        begun_s = time.process_time()
        rows: Counter[Rows] = Counter()
        sizes: Counter[Rows] = Counter()
        keys = []
        for batch in stage.work(tables.input(stage)):
            tables.add(batch)
            made = RowKind(batch.column("kind")[0].as_py()), batch.column("name")[0].as_py()
            rows[made] += batch.num_rows
            sizes[made] += batch.column("key").nbytes + batch.column("value").nbytes
            if made[0] is RowKind.REPARTITION:
                keys.append((made[1], batch.column("key")))
        tables.finish(stage)
        self.cpu.append(time.process_time() - begun_s)
        self.rows.append(rows)
        self.sizes.append(sizes)
        for topic, column in keys:
            self.keys.setdefault(topic, Counter()).update(column.to_pylist())


def on_sample(stage: Stage, sample: StepPlan) -> Stage:
    """Return a stage that reads the sample, its tasks whole."""
    work = stage.work
    if isinstance(work, RangeRunner):
        topic = work.ranges[0][1].topic
        ranges = ranges_of(sample, topic, sample.partitions[topic], RECORDS_PER_RANGE)
        return replace(stage, work=replace(work, step=sample, ranges=ranges), count=len(ranges))
    whole = stage.whole()
    return replace(whole, work=replace(whole.work, step=sample))


@dataclass(slots=True)
class _Guess:
    """From two samples, one twice the other, to the whole."""

    step: StepPlan
    plan: Plan
    of_plan: Sequence[Stage]
    half: StepPlan
    whole: StepPlan
    few: _Measured
    many: _Measured
    read: Mapping[str, _Read]
    cores: int | None
    along: Mapping[int, _Along]
    origins: list[frozenset[str]] = field(default_factory=list)
    """Of each stage the source topics that its rows come of."""
    given: dict[Rows, list[tuple[int, float, float]]] = field(default_factory=dict)
    """What came of earlier stages: (stage, rows, bytes)."""

    def stages(self) -> Iterator[StageEstimate]:
        """Yield the stages in order."""
        for number, stage in enumerate(self.of_plan):
            yield self._stage(number, stage)

    def _sub(self, stage: Stage) -> SubTopology:
        return next(sub for sub in self.plan.subtopologies if sub.name == stage.subtopology)

    def _read_by(self, stage: Stage) -> list[str]:
        """Return the source topics that a stage reads itself."""
        if stage.takes and any(kind is not RowKind.REPARTITION for kind, _ in stage.takes):
            return []
        return sorted(set(self._sub(stage).program.sources.values()) & self.read.keys())

    def _stage(self, number: int, stage: Stage) -> StageEstimate:
        topics = self._read_by(stage)
        taken = [each for rows in stage.takes if rows[0] is not RowKind.RANGE for each in self.given.get(rows, [])]
        self.origins.append(frozenset(topics).union(*(self.origins[at] for at, _, _ in taken)))
        grown = self._growing(number)
        for rows, (count, size) in grown.items():
            self.given.setdefault(rows, []).append((number, count, size))
        own = [self._taken_in(stage, topic) for topic in topics]
        by_kind = {kind: sum(count for (each, _), (count, _) in grown.items() if each is kind) for kind in RowKind}
        cpu_s = self._cpu(number, stage)
        along = self.along.get(number)
        tasks = 1 if along is None else along.tasks
        return StageEstimate(
            stage.subtopology,
            stage.way if along is None else f"{stage.way}, read once with others",
            stage.count,
            tuple(topics),
            tuple(sorted({at for at, _, _ in taken})),
            round(sum(records for records, _ in own) + sum(rows for _, rows, _ in taken)),
            round(sum(size for _, size in own) + sum(size for _, _, size in taken)),
            round(by_kind[RowKind.SINK]),
            round(by_kind[RowKind.CHANGELOG]),
            round(sum(size for _, size in grown.values())),
            cpu_s,
            max(
                cpu_s / min(stage.count * tasks, self.cores or 1),
                cpu_s * self._longest({*topics} - self._sub(stage).global_topics) / (stage.slices * tasks),
            ),
            self._memory(stage, grown),
        )

    def _taken_in(self, stage: Stage, topic: str) -> tuple[float, float]:
        """Return offsets and bytes of a topic that all tasks of a stage take: of a global table each takes all."""
        times = stage.count if topic in self._sub(stage).global_topics else 1
        return self._offsets(self.step, topic) * times, self._bytes_of(topic) * times

    def _offsets(self, step: StepPlan, *topics: str) -> int:
        return sum(len(whole) for tp, whole in step.ranges.items() if tp.topic in topics)

    def _bytes_of(self, topic: str) -> float:
        return self.read[topic].size_bytes * self._offsets(self.step, topic) / max(self._offsets(self.whole, topic), 1)

    def _scale(self, number: int) -> tuple[float, float]:
        """Return how many times the smaller sample the larger is, and the larger one the whole, in offsets of streams."""
        of = self.origins[number] - _table_topics(self.plan) or self.origins[number]
        half, whole, all_of_it = (max(self._offsets(step, *of), 1) for step in (self.half, self.whole, self.step))
        return whole / half, all_of_it / whole

    def _growing(self, number: int) -> dict[Rows, tuple[float, float]]:
        """Return rows and bytes of the whole, by what they are."""
        doubled, scale = self._scale(number)
        found = {}
        for rows, count in self.many.rows[number].items():
            if rows[0] in (RowKind.END, RowKind.RANGE):
                continue
            before = max(self.few.rows[number][rows], 1)
            power = math.log(max(count / before, 1)) / math.log(doubled) if doubled > 1 else 1.0
            factor = scale ** min(power, GROWTH_MAX)
            found[rows] = count * factor, self.many.sizes[number][rows] * factor
        return found

    def _cpu(self, number: int, stage: Stage) -> float:
        """Return CPU seconds: what a task needs to begin with, and what grows with the records; without what others read."""
        doubled, scale = self._scale(number)
        few, many = self.few.cpu[number], self.many.cpu[number]
        growing = many if doubled <= 1 else min(max((many - few) / (1 - 1 / doubled), 0.0), many)
        loaded = self._sub(stage).global_topics
        longer = self._offsets(self.step, *loaded) / max(self._offsets(self.whole, *loaded), 1) if loaded else 1.0
        alone = (many - growing) * longer * stage.count / on_sample(stage, self.whole).count + growing * scale
        return max(alone - self._read_by_others(number), 0.0)

    def _read_by_others(self, number: int) -> float:
        """Return the CPU seconds of what a stage gets from others that have read it."""
        topics = self.along[number].topics & self.read.keys() if number in self.along else ()
        return sum(
            self.read[topic].cpu_seconds * self._offsets(self.step, topic) / max(self._offsets(self.whole, topic), 1)
            for topic in topics
        )

    def _longest(self, topics: Set[str]) -> float:
        """Return the share that the longest partition has of the offsets."""
        lengths: Counter[int] = Counter()
        for tp, whole in self.step.ranges.items():
            lengths[tp.partition] += len(whole) if tp.topic in topics else 0
        return max(lengths.values(), default=0) / max(sum(lengths.values()), 1)

    def _memory(self, stage: Stage, grown: Mapping[Rows, tuple[float, float]]) -> int:
        """Return what a process has now, which has run the sample, and the state of a task; without Spark all rows as well."""
        kept = [grown[rows] for rows in grown if rows[0] in (RowKind.CHANGELOG, RowKind.PARTIAL)]
        tables = {self._sub(stage).program.sources[node] for node in self._sub(stage).table_sources.values()}
        kept += [self._taken_in(stage, topic) for topic in tables]
        state = sum(size + count * ENTRY_OVERHEAD_BYTES for count, size in kept) / max(stage.count, 1)
        held = 0.0 if self.cores else sum(size for _, size in grown.values())
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return round(now + min(state, self.step.memory_bytes) + held)

    def hot_keys(self) -> Iterator[HotKey]:
        """Yield the keys that alone are more than an even share of a task's records, where keyed work cannot be merged."""
        for stage in self.of_plan if self.cores else ():
            if stage.is_ranged or stage.count < 2 or not self._sub(stage).program.stores or not self._is_replayed(stage):
                continue
            spread = [topic for topic in self._read_by(stage) if topic not in self._sub(stage).global_topics]
            keys = {topic: self.read[topic].keys for topic in spread}
            keys |= {name: self.many.keys.get(name, Counter()) for _, name in stage.takes}
            for topic, counts in keys.items():
                total = sum(counts.values())
                for key, count in counts.most_common(HOT_KEYS_MAX):
                    if total >= HOT_FROM_RECORDS and count * stage.count > total:
                        yield HotKey(stage.subtopology, topic, key, count / total, stage.count)

    def _is_replayed(self, stage: Stage) -> bool:
        return all(kind is RowKind.REPARTITION for kind, _ in stage.takes)
