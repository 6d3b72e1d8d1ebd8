"""In which order the sub-topologies of an application are computed, and which of them more than once.

Whoever writes a repartition topic comes before whoever reads it. Sub-topologies may feed each other in a circle, as those of a
join on a foreign key do: the left side asks, the right side answers, the left side takes the answers. Nodes never feed
themselves, though: what the left side asks hangs on its own table alone. So a sub-topology of a circle first runs ahead, without
the topics that are not there yet and for the sake of its questions, and once more when all that it reads is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from logflume.log import InvalidInput
from logflume.streams.operators import OperatorProgram
from logflume.streams.seams import Plan, SubTopology


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a sub-topology's tasks over all of their records.

    Attributes:
        takes: the repartition topics that it reads, sorted.
        gives: those that it writes and that no turn before has given, sorted.
        following: the circular ones that it reads, those that are given first before others: what a record of such a topic hangs
            on may be a record of another input, so it comes behind all that were there when it was caused (`merge.Input`).
        is_ahead: whether it is for what it gives alone; results, state and positions come of a later turn.
    """

    subtopology: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    is_ahead: bool = False


def turns_of(plan: Plan) -> list[Turn]:
    """Return the turns in the order in which they run.

    Raises:
        InvalidInput: records say their topics themselves, a topic is a global table and read as something else too, or what a
            sub-topology writes hangs on itself.
    """
    computed = [node for sub in plan.subtopologies for node, out in sub.outputs.items() if out.is_computed]
    if computed:
        raise InvalidInput(
            f"{computed[0]!r}: records say their topics themselves; a backfill writes to topics that it knows: to('topic')"
        )
    both = {topic for sub in plan.subtopologies for topic in sub.global_topics} & {
        topic for sub in plan.subtopologies for topic in sub.shared_topics()
    }
    if both:
        raise InvalidInput(
            f"topic {min(both)!r} is a global table and read as something else too, which Spark does not tell apart: copy it to "
            "another topic and make the table of that, or run the application without Spark"
        )
    circular = _circular_topics(plan)
    written = {sub.name: _written(sub) for sub in plan.subtopologies}
    read = {sub.name: _read(sub) & frozenset().union(*written.values()) for sub in plan.subtopologies}
    there: dict[str, None] = {}  # in the order in which they are given

    def made(name: str, gives: frozenset[str], *, is_ahead: bool = False) -> Turn:
        takes, fresh = sorted(read[name] & there.keys()), sorted(gives - there.keys())
        following = [*(topic for topic in there if topic in read[name] & circular), *sorted(read[name] & circular - there.keys())]
        there.update(dict.fromkeys(fresh))
        return Turn(name, tuple(takes), tuple(fresh), tuple(following), is_ahead)

    found: list[Turn] = []
    waiting = list(plan.subtopologies)
    while waiting:
        ready = [sub for sub in waiting if read[sub.name] <= there.keys()]
        if ready:
            found += [made(sub.name, written[sub.name]) for sub in ready]
            waiting = [sub for sub in waiting if sub not in ready]
            continue
        ahead = ((sub.name, _within_reach(sub, read[sub.name] - there.keys()) & circular - there.keys()) for sub in waiting)
        name, gives = next(((name, gives) for name, gives in ahead if gives), (waiting[0].name, frozenset[str]()))
        if not gives:
            raise InvalidInput(f"what sub-topology {name!r} writes to its internal topics hangs on what it reads from them")
        found.append(made(name, gives, is_ahead=True))
    return found


def _circular_topics(plan: Plan) -> frozenset[str]:
    """Return the repartition topics by which sub-topologies feed each other, or themselves, in a circle."""
    readers = {topic: sub.name for sub in plan.subtopologies for topic in _read(sub)}
    written = {sub.name: _written(sub) for sub in plan.subtopologies}

    def fed_by(name: str) -> set[str]:
        """Return the sub-topologies that something of what a sub-topology writes comes to."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            fresh = {readers[topic] for topic in written[waiting.pop()] if topic in readers} - found
            found |= fresh
            waiting += fresh
        return found

    fed = {name: fed_by(name) for name in written}
    return frozenset(
        topic
        for name, topics in written.items()
        for topic in topics
        if topic in readers and (readers[topic] == name or name in fed[readers[topic]])
    )


def _written(sub: SubTopology) -> frozenset[str]:
    return frozenset(out.topic for out in sub.outputs.values() if out.is_repartition)


def _read(sub: SubTopology) -> frozenset[str]:
    return frozenset(sub.program.sources.values())


def _within_reach(sub: SubTopology, missing: frozenset[str]) -> frozenset[str]:
    """Return the repartition topics that a sub-topology writes and that hang on nothing that it reads from the missing ones.

    A node hangs on what comes in, on tables that it looks rows up in, and on whoever changes a store that it has too.
    """
    assert isinstance(sub.program, OperatorProgram)
    wiring = sub.program.wiring
    inputs = {name: set() if name in wiring.sources else {*each.node.inputs} for name, each in wiring.operators.items()}
    stores = {name: {spec.name for spec in each.stores()} for name, each in wiring.operators.items()}
    hanging = {name for name, topic in sub.program.sources.items() if topic in missing}
    fresh = set(hanging)
    while fresh:
        kept = {store for name in hanging for store in stores[name]}
        fresh = {name for name in wiring.operators if inputs[name] & hanging or stores[name] & kept} - hanging
        hanging |= fresh
    free = {wiring.node(name).name for name in wiring.operators.keys() - hanging - set(wiring.sources)}
    return frozenset(out.topic for node, out in sub.outputs.items() if out.is_repartition and node in free)
