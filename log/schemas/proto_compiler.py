"""Protobuf schemas as text -> descriptors, by protoc, in a process of its own: a schema is untrusted text for a C++ program, and
a process can be bounded in time. What was compiled is kept.

Files that schemas import without bringing them are looked up among protoc's own (`google/protobuf/`) and the few below that
Confluent's and Google's schemas use for decimals, dates, times of day and metadata.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from logflume.log.errors import DecodeError

_TIMEOUT_S = 20
_MAX_TEXT_CHARS = 1 << 20
_MAX_FILES = 256
SCHEMA_FILE = "schema.proto"

COMMON_FILES: Mapping[str, str] = {
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "google/type/date.proto": """syntax = "proto3";
package google.type;
message Date { int32 year = 1; int32 month = 2; int32 day = 3; }
""",
    "google/type/timeofday.proto": """syntax = "proto3";
package google.type;
message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }
""",
}


@lru_cache(maxsize=1024)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return a schema and all that it imports as a FileDescriptorSet, imports first; the schema's own file is the last.

    Raises:
        DecodeError: not a Protobuf schema; the message is protoc's, with line and column.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    if len(text) > _MAX_TEXT_CHARS or len(references) > _MAX_FILES:
        raise DecodeError(f"a Protobuf schema has at most {_MAX_TEXT_CHARS} characters and {_MAX_FILES} references")
    with tempfile.TemporaryDirectory(prefix="logflume-proto-") as folder:
        root = Path(folder)
        for name, content in {**COMMON_FILES, **dict(references), SCHEMA_FILE: text}.items():
            _write(root, name, content)
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{root}",
            "--include_imports",
            f"--descriptor_set_out={root / 'out'}",
        ]
        try:
            done = subprocess.run([*command, SCHEMA_FILE], capture_output=True, timeout=_TIMEOUT_S, cwd=root, check=False)
        except subprocess.TimeoutExpired:
            raise DecodeError(f"compiling the Protobuf schema took more than {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            raise DecodeError(f"not a Protobuf schema: {done.stderr.decode('utf-8', 'replace').strip()[:1000]}")
        return FileDescriptorSet.FromString((root / "out").read_bytes())


def _write(root: Path, name: str, content: str) -> None:
    """Write a file below the root, wherever its name points to."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        raise DecodeError(f"a Protobuf schema cannot refer to {name!r}: expected a relative path")
    path = root.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
