"""One task: records that re-keyed streams send through internal topics, stream time, punctuation, the wall clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import NEVER, Node, Record


class Queue(Node):
    """An internal topic. `keeps_null_keys`: a join further down takes them."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.keeps_null_keys = True
        self.waiting: deque[Record] = deque()

    def receive(self, record: Record) -> None:
        if record.key is None and not self.keeps_null_keys:
            return
        self.waiting.append(record)
        if len(self.waiting) == 1:
            self.task.offer(self)


@dataclass(eq=False, slots=True)
class Schedule:
    """A callback each `every_ms` of stream time or of the wall clock; missed ones are one."""

    every_ms: int
    call: Callable[[int], None]
    next_ms: int

    def run(self, now_ms: int) -> None:
        if now_ms >= self.next_ms:
            self.next_ms = (now_ms // self.every_ms + 1) * self.every_ms
            self.call(now_ms)


class Task:
    """What all nodes of a topology share. `is_leaving`: results of windows that close are; `at_end`: of each input's record."""

    def __init__(self) -> None:
        self.heap: list[Queue] = []
        self.stream_time = NEVER
        self.wall_clock_ms = 0
        self.by_stream_time: list[Schedule] = []
        self.by_wall_clock: list[Schedule] = []
        self.is_leaving = False
        self.at_end: list[Callable[[], None]] = []

    def take(self, receive: Callable[[Record], None], record: Record) -> None:
        """Process a record of an input, then all that was queued by it."""
        self._process(receive, record)
        self._drain()
        for call in self.at_end:
            call()

    def advance(self, ms: int) -> None:
        self.wall_clock_ms += ms
        for schedule in self.by_wall_clock:
            schedule.run(self.wall_clock_ms)
        self._drain()

    def _process(self, receive: Callable[[Record], None], record: Record) -> None:
        self.stream_time = max(self.stream_time, record.ts)
        receive(record)
        for schedule in self.by_stream_time:
            schedule.run(self.stream_time)

    def _drain(self) -> None:
        while self.heap:
            queue = self._poll()
            record = queue.waiting.popleft()
            if queue.waiting:
                self.offer(queue)
            self._process(queue.forward, record)

    def offer(self, queue: Queue) -> None:
        """Sift up, as the binary heap that Kafka Streams uses: equal times are not a stable order there."""
        heap, at = self.heap, len(self.heap)
        heap.append(queue)
        while at > 0 and _time(queue) < _time(heap[(at - 1) // 2]):
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = queue

    def _poll(self) -> Queue:
        heap = self.heap
        first, last = heap[0], heap.pop()
        if heap:
            at = 0
            while (child := 2 * at + 1) < len(heap):
                if child + 1 < len(heap) and _time(heap[child + 1]) < _time(heap[child]):
                    child += 1
                if _time(last) <= _time(heap[child]):
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = last
        return first


def _time(queue: Queue) -> Any:
    return queue.waiting[0].ts
