"""Avro as a schema language."""

from __future__ import annotations

from collections.abc import Sequence

from . import avro, avro_text
from .avro import AvroSchema
from .parsed import Limits, Resolved


class AvroLanguage:
    """See `parsed.Language`."""

    def parse(self, text: str, resolved: Sequence[Resolved], *, is_new: bool, limits: Limits) -> AvroSchema:
        return avro.parse(text, resolved, is_new=is_new, limits=limits)

    def canonical(self, tree: AvroSchema, *, normalize: bool) -> str:
        return avro_text.canonical(tree, normalize=normalize)

    def formatted(self, tree: AvroSchema, form: str) -> str:
        return avro_text.formatted(tree, form)


LANGUAGE = AvroLanguage()
