"""Sorts a whole file in memory and gives its rows out in order; a position is a row number of the sorted file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from logflume.log import InvalidInput
from logflume.log.schemas import Column

from .file_block import Block, BrokenAt, FileReader, Start
from .file_identity import check_same, fingerprint_whole
from .file_options import SORT_MAX_BYTES

_BLOCK_ROWS = 16_384


class SortedReader:
    """The rows of another reader in order of some columns, stable, nulls and broken rows first. The file must not change."""

    def __init__(self, path: str, reader: FileReader, by: tuple[str, ...]) -> None:
        self._path = path
        self._reader = reader
        self._by = by
        size = os.path.getsize(path)
        if size > SORT_MAX_BYTES:
            reader.close()
            raise InvalidInput(
                f"sort.by: {path} has {size >> 20} MB, expected at most {SORT_MAX_BYTES >> 20} MB (it is sorted in memory); "
                "sort it beforehand and set timestamp.order.check = true"
            )
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._identity = {**fingerprint_whole(fd, is_exact=True), "sort.by": list(by)}
        finally:
            os.close(fd)
        self._rows = 0

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._reader.columns

    def blocks(self, start: Start) -> Iterator[Block]:
        columns: list[list[Any]] = [[] for _ in self.columns]
        lines: list[int] = []
        broken: list[BrokenAt] = []
        for block in self._reader.blocks(Start()):
            for column, values in zip(columns, block.columns, strict=True):
                column.extend(values)
            lines.extend(block.lines.tolist())
            broken.extend(replace(each, rows_before=0) for each in block.broken)
        self._rows = len(lines)
        order = self._order(columns, self._rows)
        for at in range(start.position, max(self._rows, 1), _BLOCK_ROWS):
            rows = order[at : at + _BLOCK_ROWS]
            ends = np.arange(at + 1, at + len(rows) + 1, dtype=np.int64)
            yield Block(
                columns=[[column[row] for row in rows] for column in columns],
                ends=ends,
                lines=np.array([lines[row] for row in rows], np.int64),
                next_lines=ends + 1,
                broken=tuple(broken) if at == 0 else (),
                end=max(at + len(rows), 1),
                end_line=at + len(rows) + 1,
            )

    def size(self) -> int:
        return self._rows

    def identity(self, position: int) -> dict[str, Any]:
        return self._identity

    def check(self, position: int, kept: Mapping[str, Any]) -> None:
        check_same(self._path, self._identity, kept)

    def is_replaced(self) -> bool:
        return False

    def close(self) -> None:
        self._reader.close()

    def _order(self, columns: list[list[Any]], count: int) -> list[int]:
        names = [column.name for column in self.columns]
        keys = [columns[names.index(name)] for name in self._by if name in names]
        ordered = list(range(count))
        for values in reversed(keys):
            ordered.sort(key=lambda row, values=values: (False, 0) if values[row] is None else (True, values[row]))  # type: ignore[misc]
        return ordered
