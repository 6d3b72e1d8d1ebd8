"""Protobuf as a schema language. `serialized` is its other form: the descriptor in base64, as Python's clients send it."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from . import protobuf
from .parsed import Limits, Resolved
from .protobuf import ProtobufSchema
from .protobuf_text import print_file


class ProtobufLanguage:
    """See `parsed.Language`."""

    def parse(self, text: str, resolved: Sequence[Resolved], *, is_new: bool, limits: Limits) -> ProtobufSchema:
        return protobuf.parse(text, resolved, limits=limits)

    def canonical(self, tree: ProtobufSchema, *, normalize: bool) -> str:
        return print_file(tree.file, tree.imports, normalize=normalize)

    def formatted(self, tree: ProtobufSchema, form: str) -> str:
        if form == "serialized":
            return base64.b64encode(tree.file.SerializeToString()).decode()
        return self.canonical(tree, normalize=False)


LANGUAGE = ProtobufLanguage()
