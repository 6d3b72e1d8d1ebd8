"""Reads Parquet row by row group; a position is a row number, and going on begins in the row group that holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logflume.log import InvalidInput
from logflume.log.arrow_values import column_type, row_values
from logflume.log.schemas import Column

from .file_block import Block, Start
from .file_identity import check_same, fingerprint_whole

_BATCH_ROWS = 16_384


class ParquetReader:
    """A Parquet file; it must not change while it is read, and its types are its own."""

    def __init__(self, path: str, *, declared: tuple[Column, ...]) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from error
        try:
            self._file = pq.ParquetFile(path)
            self._identity = fingerprint_whole(self._fd, is_exact=False)
            self.columns = self._checked(declared)
        except pa.ArrowException as error:
            os.close(self._fd)
            raise InvalidInput(f"{path}: not a Parquet file: {error}") from error
        except BaseException:
            os.close(self._fd)
            raise

    def blocks(self, start: Start) -> Iterator[Block]:
        metadata = self._file.metadata
        group_ends = list(accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)))
        for group, end in enumerate(group_ends):
            if end <= start.position:
                continue
            at = end - metadata.row_group(group).num_rows
            names = [column.name for column in self.columns]
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=names):
                skip = min(max(start.position - at, 0), batch.num_rows)
                if skip < batch.num_rows:
                    yield self._block(batch.slice(skip), at + skip)
                at += batch.num_rows

    def size(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    def identity(self, position: int) -> dict[str, Any]:
        return self._identity

    def check(self, position: int, kept: Mapping[str, Any]) -> None:
        check_same(self._path, self._identity, kept)

    def is_replaced(self) -> bool:
        return False

    def close(self) -> None:
        self._file.close()
        os.close(self._fd)

    def _block(self, batch: Any, position: int) -> Block:
        ends = np.arange(position + 1, position + batch.num_rows + 1, dtype=np.int64)
        columns = [row_values(batch.column(column.name), column.type) for column in self.columns]
        return Block(
            columns=columns, ends=ends, lines=ends, next_lines=ends + 1, broken=(), end=int(ends[-1]), end_line=int(ends[-1]) + 1
        )

    def _checked(self, declared: tuple[Column, ...]) -> tuple[Column, ...]:
        schema = self._file.schema_arrow
        if not declared:
            return tuple(Column(field.name, column_type(field.type)) for field in schema)
        missing = [column.name for column in declared if column.name not in schema.names]
        if missing:
            raise InvalidInput(f"{self._path}: no column {', '.join(missing)}; the file has {', '.join(schema.names)}")
        for column in declared:
            found = column_type(schema.field(column.name).type)
            if found != column.type and not _is_widening(found, column):
                raise InvalidInput(
                    f"{self._path}, column {column.name}: value.columns says {column.type}, the file holds {found}"
                )
        return declared


def _is_widening(found: Any, column: Column) -> bool:
    wider = {"INTEGER": ("BIGINT", "DOUBLE"), "DATE": ("TIMESTAMP",)}
    return column.type.kind.value in wider.get(found.kind.value, ())
