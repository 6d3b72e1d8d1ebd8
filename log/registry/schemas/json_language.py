"""JSON Schema as a schema language. The canonical text is the shortest one in the order given; normalised, keys are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import json_schema, json_text
from .json_schema import JsonSchema
from .parsed import Limits, Resolved


class JsonLanguage:
    """See `parsed.Language`."""

    def parse(self, text: str, resolved: Sequence[Resolved], *, is_new: bool, limits: Limits) -> JsonSchema:
        return json_schema.parse(text, resolved, limits=limits)

    def canonical(self, tree: JsonSchema, *, normalize: bool) -> str:
        return json_text.dump(_sorted(tree.document) if normalize else tree.document)

    def formatted(self, tree: JsonSchema, form: str) -> str:
        return self.canonical(tree, normalize=False)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


LANGUAGE = JsonLanguage()
