"""Where the boxes of a picture go: layers from left to right, few crossings, no overlaps. Pure; sizes in pixels.

A small version of the usual layered drawing (Sugiyama): longest-path layers, dummy points where an edge passes a layer, order by
the mean of the neighbours, then heights relaxed towards the neighbours' middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 8


@dataclass(slots=True)
class Item:
    """A box (or a dummy point of no width) in a layer; x and y are its left top corner."""

    id: str
    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Items by id, the points that each edge passes (ids, both ends included), and the size of it all."""

    items: Mapping[str, Item]
    paths: Mapping[tuple[str, str], tuple[str, ...]]
    width: float
    height: float


def lay_out(
    sizes: Mapping[str, tuple[float, float]],
    edges: Iterable[tuple[str, str]],
    *,
    gap_x: float = 46.0,
    gap_y: float = 18.0,
    last: frozenset[str] = frozenset(),
) -> Layout:
    """Place boxes of the given (width, height). `last`: boxes of the rightmost layer, where edges leave the picture."""
    items = {name: Item(name, width, height) for name, (width, height) in sizes.items()}
    edges = list(dict.fromkeys(edges))
    _layers(items, edges, last)
    paths, hops = _with_dummies(items, edges)
    layers = _in_layers(items)
    _order(layers, hops)
    width = _columns(layers, gap_x)
    _heights(layers, hops, gap_y)
    top = min((item.y for item in items.values()), default=0.0)
    for item in items.values():
        item.y -= top
    return Layout(items, paths, width, max((item.y + item.height for item in items.values()), default=0.0))


def _layers(items: Mapping[str, Item], edges: Sequence[tuple[str, str]], last: frozenset[str]) -> None:
    for _ in items:
        changed = False
        for source, target in edges:
            if items[target].layer <= items[source].layer:
                items[target].layer = items[source].layer + 1
                changed = True
        if not changed:
            break
    end = max((item.layer for item in items.values()), default=0)
    for name in last:
        items[name].layer = end


def _with_dummies(
    items: dict[str, Item], edges: Sequence[tuple[str, str]]
) -> tuple[dict[tuple[str, str], tuple[str, ...]], list[tuple[str, str]]]:
    """Add a point in each layer that an edge passes; return the points of each edge, and all hops between them."""
    paths: dict[tuple[str, str], tuple[str, ...]] = {}
    hops: list[tuple[str, str]] = []
    for source, target in edges:
        points = [source]
        for layer in range(items[source].layer + 1, items[target].layer):
            name = f"{source}>{target}@{layer}"
            items[name] = Item(name, 0.0, 6.0, layer)
            points.append(name)
        points.append(target)
        paths[source, target] = tuple(points)
        hops += list(pairwise(points))
    return paths, hops


def _in_layers(items: Mapping[str, Item]) -> list[list[Item]]:
    count = max((item.layer for item in items.values()), default=-1) + 1
    layers: list[list[Item]] = [[] for _ in range(count)]
    for item in items.values():
        layers[item.layer].append(item)
    return layers


def _neighbours(hops: Sequence[tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for source, target in hops:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


def _order(layers: list[list[Item]], hops: Sequence[tuple[str, str]]) -> None:
    before, after = _neighbours(hops)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for layer in layers if forward else list(reversed(layers)):
            rank = {item.id: i for part in layers for i, item in enumerate(part)}
            known = before if forward else after
            keys = {}
            for i, item in enumerate(layer):
                near = [rank[name] for name in known.get(item.id, ())]
                keys[item.id] = (sum(near) / len(near) if near else i, i)
            layer.sort(key=lambda item: keys[item.id])


def _columns(layers: list[list[Item]], gap_x: float) -> float:
    x = 0.0
    for layer in layers:
        width = max((item.width for item in layer), default=0.0)
        for item in layer:
            item.x = x + (width - item.width) / 2
        x += width + gap_x
    return max(0.0, x - gap_x)


def _heights(layers: list[list[Item]], hops: Sequence[tuple[str, str]], gap_y: float) -> None:
    before, after = _neighbours(hops)
    at = {item.id: item for layer in layers for item in layer}
    for layer in layers:
        y = 0.0
        for item in layer:
            item.y = y
            y += item.height + gap_y
    for sweep in range(2 * _SWEEPS):
        known = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else list(reversed(layers)):
            wanted = []
            for item in layer:
                near = [at[name].middle for name in known.get(item.id, ())]
                wanted.append(sum(near) / len(near) - item.height / 2 if near else item.y)
            _place(layer, wanted, gap_y)


def _place(layer: list[Item], wanted: list[float], gap_y: float) -> None:
    """Put items at the wanted heights as far as their order and the gaps allow: runs that touch share their mean."""
    groups: list[tuple[list[Item], float, float]] = []
    for item, y in zip(layer, wanted, strict=True):
        members, total, count = [item], y, 1.0
        while groups:
            above, above_total, above_count = groups[-1]
            bottom = above_total / above_count + sum(i.height + gap_y for i in above)
            if bottom <= total / count:
                break
            groups.pop()
            offset = sum(i.height + gap_y for i in above)
            total = above_total + (total - offset * count)
            count += above_count
            members = above + members
        groups.append((members, total, count))
    for members, total, count in groups:
        y = total / count
        for item in members:
            item.y = y
            y += item.height + gap_y
