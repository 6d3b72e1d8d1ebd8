"""A description as a picture: topics as pills, sub-topologies as frames around what a task does, stores under their keepers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from .data import Description, NodeBox, Part
from .layout import Item, Layout, lay_out

_LINE = 15.0
_PAD = 10.0
_FRAME = 24.0
_LINES_MAX = 6
_COLORS = {
    "aggregate": ("#f3e8ff", "#9333ea"),
    "join": ("#dcfce7", "#16a34a"),
    "filter": ("#e0f2fe", "#0284c7"),
    "key": ("#ffedd5", "#ea580c"),
    "table": ("#fef9c3", "#ca8a04"),
}
_PLAIN = ("#f1f5f9", "#64748b")
_STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#0f172a}
.kind{font-weight:600;font-size:10px;letter-spacing:.06em;text-transform:uppercase}
.mono{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.soft{fill:#64748b}
.title{font-weight:600;font-size:14px}
.edge{fill:none;stroke:#94a3b8;stroke-width:1.5}
.frame{fill:#fff;stroke:#e2e8f0}
"""


@dataclass(slots=True)
class _Frame:
    """A sub-topology with its own layout; x and y are set when the frames are placed."""

    part: Part
    layout: Layout
    boxes: dict[str, NodeBox]
    reads: dict[str, list[str]] = field(default_factory=dict)
    writes: dict[str, list[str]] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return self.layout.width + 2 * _FRAME

    @property
    def height(self) -> float:
        return self.layout.height + 2 * _FRAME + 10


def to_svg(description: Description) -> str:
    """Return an SVG document of its own size, with its fonts and colours inside."""
    frames = [_frame(part) for part in description.parts]
    topics = list(dict.fromkeys(topic for frame in frames for topic in (*frame.reads, *frame.writes)))
    internal = {t for f in frames for t in f.writes} & {t for f in frames for t in f.reads}
    prefix = f"{description.application}-"
    labels = {t: t.removeprefix(prefix) if t in internal else t for t in topics}
    closing = _closing_reads(frames)
    pills = {f"t:{t}": t for t in topics} | {f"r:{t}": t for t, _ in closing}
    sizes = {pill: (_text_width(labels[t]) + 34, 30.0) for pill, t in pills.items()}
    sizes |= {f"f:{i}": (frame.width, frame.height) for i, frame in enumerate(frames)}
    edges = [(f"{'r' if (t, i) in closing else 't'}:{t}", f"f:{i}") for i, frame in enumerate(frames) for t in frame.reads]
    edges += [(f"f:{i}", f"t:{t}") for i, frame in enumerate(frames) for t in frame.writes]
    whole = lay_out(sizes, edges, gap_x=44.0, gap_y=26.0)
    for i, frame in enumerate(frames):
        frame.x, frame.y = whole.items[f"f:{i}"].x, whole.items[f"f:{i}"].y
    body = [text for frame in frames for text in _draw_frame(frame)]
    for (source, target), points in whole.paths.items():
        body += _draw_between(frames, whole, source, target, points)
    body += [text for pill, t in pills.items() for text in _draw_topic(whole.items[pill], labels[t], is_internal=t in internal)]
    width, height = whole.width + 40, whole.height + 74
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="-20 -54 {width:.0f} {height:.0f}" role="img">'
        f"<title>{escape(description.application)}</title><style>{_STYLE}</style>"
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#94a3b8"/></marker></defs>'
        f'<rect x="-20" y="-54" width="{width:.0f}" height="{height:.0f}" fill="#f8fafc"/>'
        f'<text class="title" x="0" y="-26">{escape(description.application)}</text>{"".join(body)}</svg>'
    )


def _closing_reads(frames: Sequence[_Frame]) -> frozenset[tuple[str, int]]:
    """Return (topic, frame that reads it) by which sub-topologies feed each other in a circle, as those of a foreign key do.

    Such a topic is drawn twice, once where it is written and once where it is read, so that all edges go to the right.
    """
    readers: dict[str, list[int]] = {}
    for i, frame in enumerate(frames):
        for topic in frame.reads:
            readers.setdefault(topic, []).append(i)
    found: set[tuple[str, int]] = set()
    done: set[int] = set()

    def follow(i: int, above: frozenset[int]) -> None:
        above |= {i}
        for topic in frames[i].writes:
            for reader in readers.get(topic, ()):
                if reader in above:
                    found.add((topic, reader))
                elif reader not in done:
                    follow(reader, above)
        done.add(i)

    for i in range(len(frames)):
        if i not in done:
            follow(i, frozenset())
    return frozenset(found)


def _frame(part: Part) -> _Frame:
    """Lay out one sub-topology. Sources and sinks are points on its left and right edge, their topics lie outside."""
    boxes: dict[str, NodeBox] = {}
    sizes: dict[str, tuple[float, float]] = {}
    edges: list[tuple[str, str]] = []
    frame_reads: dict[str, list[str]] = {}
    frame_writes: dict[str, list[str]] = {}
    ends: set[str] = set()
    places: dict[str, str] = {}
    for node in part.nodes:
        if node.inputs and node.topic is not None:
            place = f"out:{node.name}"
            sizes[place] = (0.0, 8.0)
            frame_writes.setdefault(node.topic, []).append(place)
            ends.add(place)
        elif node.topic is not None:
            place = f"in:{node.name}"
            sizes[place] = (0.0, 8.0)
            frame_reads.setdefault(node.topic, []).append(place)
            if node.store is not None:
                edges.append((place, node.name))
                place = node.name
                boxes[place], sizes[place] = node, _box_size(node)
        else:
            place = node.name
            boxes[place], sizes[place] = node, _box_size(node)
        edges += [(places[source], place) for source in node.inputs]
        if not (node.inputs and node.topic is not None):
            places[node.name] = place
        if node.kind == "join" and (table := node.title.partition(" with ")[2]) in places:
            edges.append((places[table], place))
    return _Frame(part, lay_out(sizes, edges, last=frozenset(ends)), boxes, frame_reads, frame_writes)


def _lines(node: NodeBox) -> list[str]:
    title = node.name if node.kind == "table" else node.title
    parts = title.split(", ") if "(" in title or "=" in title else [title]
    lines = [line for text in (*parts, *node.details) for line in _wrap(text, 30)]
    return lines if len(lines) <= _LINES_MAX else [*lines[: _LINES_MAX - 1], "…"]


def _wrap(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [part if len(part) <= width + 6 else part[: width + 5] + "…" for part in [*lines, line] if part]


def _text_width(text: str) -> float:
    return 6.7 * len(text)


def _box_size(node: NodeBox) -> tuple[float, float]:
    lines = _lines(node)
    width = max([_text_width(line) for line in lines] + [7.4 * len(node.kind)], default=0.0) + 2 * _PAD
    height = _LINE * (len(lines) + 1) + _PAD + 4
    if node.store is not None:
        width = max(width, _text_width(_short(node.store)) + 44)
        height += 24
    return max(width, 84.0), height


def _short(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:16]}…{text[-17:]}"


def _draw_frame(frame: _Frame) -> Iterable[str]:
    yield _box(frame.x, frame.y, frame.width, frame.height, 14, 'class="frame"')
    left, top = frame.x + _FRAME, frame.y + _FRAME + 10
    name = escape(_short(frame.part.name))
    yield f'<text class="soft" x="{frame.x + 14:.1f}" y="{frame.y + 20:.1f}" font-size="11">{name}</text>'
    items = frame.layout.items
    for points in frame.layout.paths.values():
        yield _curve([_anchor(items[p], left, top, is_end=i == 0) for i, p in enumerate(points)], arrow=points[-1] in frame.boxes)
    for name, node in frame.boxes.items():
        yield from _draw_box(node, items[name], left, top)


def _anchor(item: Item, left: float, top: float, *, is_end: bool) -> tuple[float, float, float]:
    """Return where an edge passes an item: x on its near side, y, and x on its far side (equal at both ends of an edge)."""
    near, far = left + item.x, left + item.x + item.width
    return (far if is_end else near, top + item.middle, far)


def _curve(points: list[tuple[float, float, float]], *, arrow: bool, dashed: bool = False) -> str:
    x, y, _ = points[0]
    path = f"M{x:.1f} {y:.1f}"
    for nx, ny, _ in points[1:]:
        half = (nx - x) / 2
        path += f"C{x + half:.1f} {y:.1f} {nx - half:.1f} {ny:.1f} {nx:.1f} {ny:.1f}"
        x, y = nx, ny
    extra = ' marker-end="url(#arrow)"' if arrow else ""
    extra += ' stroke-dasharray="4 4"' if dashed else ""
    return f'<path class="edge" d="{path}"{extra}/>'


def _draw_box(node: NodeBox, item: Item, left: float, top: float) -> Iterable[str]:
    fill, stroke = _COLORS.get(node.kind, _PLAIN)
    x, y = left + item.x, top + item.y
    yield f"<g><title>{escape(node.name)}</title>"
    yield _box(x, y, item.width, item.height, 8, f'fill="{fill}" stroke="{stroke}"')
    yield f'<text class="kind" x="{x + _PAD:.1f}" y="{y + 17:.1f}" style="fill:{stroke}">{escape(node.kind)}</text>'
    for i, line in enumerate(_lines(node)):
        yield f'<text class="mono" x="{x + _PAD:.1f}" y="{y + 17 + _LINE * (i + 1):.1f}">{escape(line)}</text>'
    if node.store is not None:
        yield from _draw_store(node.store, x + 6, y + item.height - 25, item.width - 12, stroke)
    yield "</g>"


def _box(x: float, y: float, width: float, height: float, radius: int, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" {look}/>'


def _draw_store(name: str, x: float, y: float, width: float, stroke: str) -> Iterable[str]:
    yield _box(x, y, width, 19, 5, f'fill="#fff" stroke="{stroke}" stroke-opacity=".35"')
    cx, cy = x + 11, y + 6
    yield (
        f'<path d="M{cx - 5:.1f} {cy:.1f}v7a5 2 0 0 0 10 0v-7" fill="none" stroke="{stroke}"/>'
        f'<ellipse cx="{cx:.1f}" cy="{cy:.1f}" rx="5" ry="2" fill="none" stroke="{stroke}"/>'
    )
    yield f'<text class="mono soft" x="{x + 22:.1f}" y="{y + 13.5:.1f}">{escape(_short(name))}</text>'


def _draw_topic(item: Item, label: str, *, is_internal: bool) -> Iterable[str]:
    dash = ' stroke-dasharray="4 3"' if is_internal else ""
    fill, stroke = ("#fff", "#94a3b8") if is_internal else ("#1e293b", "#1e293b")
    color = "#475569" if is_internal else "#fff"
    yield _box(item.x, item.y, item.width, item.height, 15, f'fill="{fill}" stroke="{stroke}"{dash}')
    middle = item.x + item.width / 2
    yield f'<text x="{middle:.1f}" y="{item.middle + 4:.1f}" text-anchor="middle" style="fill:{color}">{escape(label)}</text>'


def _draw_between(frames: list[_Frame], whole: Layout, source: str, target: str, points: tuple[str, ...]) -> Iterable[str]:
    """Draw the edges between a topic and the points of a frame that read or write it."""
    between = [_anchor(whole.items[p], 0.0, 0.0, is_end=False) for p in points[1:-1]]
    is_read = not source.startswith("f:")
    frame = frames[int((target if is_read else source)[2:])]
    topic = whole.items[source if is_read else target]
    ports = (frame.reads if is_read else frame.writes)[(source if is_read else target)[2:]]
    for port in ports:
        item = frame.layout.items[port]
        inside = (frame.x + _FRAME + item.x, frame.y + _FRAME + 10 + item.middle, 0.0)
        if is_read:
            yield _curve([(topic.x + topic.width, topic.middle, 0.0), *between, inside], arrow=False)
        else:
            yield _curve([inside, *between, (topic.x, topic.middle, 0.0)], arrow=True)
