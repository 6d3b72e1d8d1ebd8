"""What of a window store's changelog nothing alive depends on: a prefix that may be deleted. (pure)

A topic's own retention cannot tell: it goes by the clock, and the stream time of history that is replayed lies years before it.
So the changelog keeps everything (but what compaction removes), and its task has the records of expired windows deleted.
"""

from __future__ import annotations

from .windows import SegmentLayout

Mark = tuple[int, int]


class ChangelogTimes:
    """How old the windows of a changelog's records are at most. As many marks as there are segments of time alive, three or four.

    `marks`: (time in ms, offset): no record before the offset has a window that starts after the time; both ascend.
    """

    __slots__ = ("_layout", "marks")

    def __init__(self, layout: SegmentLayout, marks: list[Mark]) -> None:
        self._layout = layout
        self.marks = marks

    def note(self, newest_start_ms: int, end_offset: int) -> None:
        """Note that the records up to an offset have windows that start at this time or before."""
        last_ms, last_offset = self.marks[-1] if self.marks else (-1, 0)
        mark = max(newest_start_ms, last_ms), max(end_offset, last_offset)
        if self.marks and mark[0] // self._layout.segment_ms == last_ms // self._layout.segment_ms:
            self.marks[-1] = mark
        else:
            self.marks.append(mark)

    def expired(self, stream_time_ms: int) -> int:
        """Return the offset before which every window has expired, and forget the marks before it; 0 where there is none."""
        alive_ms = self._layout.oldest_alive(stream_time_ms)
        gone = [offset for time_ms, offset in self.marks if time_ms < alive_ms]
        self.marks = self.marks[len(gone) :]
        return gone[-1] if gone else 0
