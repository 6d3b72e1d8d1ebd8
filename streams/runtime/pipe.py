"""A plan that keeps nothing, over records that somebody else reads: no group, no state, no topics of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from logflume.log import LogflumeError
from logflume.log.records import Chunk
from logflume.streams.seams import Plan

from .handlers import StreamsError
from .options import EngineOptions
from .outputs import TaskOutputs
from .problems import TaskProblems


def is_pipe(plan: Plan) -> bool:
    """Tell whether a plan reads one topic, keeps no state and writes no topic: what it does is done by its functions."""
    subs = plan.subtopologies
    return len(subs) == 1 and len(subs[0].program.sources) == 1 and not subs[0].program.stores and not subs[0].outputs


class Pipe:
    """See the module; `is_pipe` tells which plans can be one. One thread. Records that cannot be processed are counted."""

    def __init__(self, plan: Plan, *, wall_s: Callable[[], float] = time.time) -> None:
        assert is_pipe(plan), plan.application
        (sub,) = plan.subtopologies
        ((self._node, self.topic),) = sub.program.sources.items()
        self._name, self._wall_s = plan.application, wall_s
        self._problems = TaskProblems(plan.application, handlers=EngineOptions().handlers, keeps_letters=False)
        self._function = sub.program.bind({}, TaskOutputs(sub.outputs), self._problems)

    def take(self, chunk: Chunk, start: int) -> None:
        """Process the records of a chunk of the topic from one on.

        Raises:
            StreamsError: the program failed; names topic, partition and offset.
        """
        self._problems.chunks = [chunk]
        try:
            self._function.advance(int(self._wall_s() * 1000))
            self._function.process(self._node, chunk, start, len(chunk))
            self._function.flush()
        except LogflumeError:
            raise
        except Exception as error:
            doing = f"while processing {chunk.topic}-{chunk.partition} from offset {chunk.offsets[start]}"
            raise StreamsError.of(error, self._name, doing) from error

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many records were left out, by reason."""
        return dict(self._problems.counts)
