"""Column types and serdes shared by streams, sql and connect."""

from .coerce import java_double_text
from .formats import CompiledSerde, Format, check_columns, format_of, opaque, serde
from .objects import ObjectCodec, columns_of, is_object_class, object_codec
from .serde import FormatSpec, Row, Serde
from .types import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    array,
    decimal,
    map_of,
    struct,
)

__all__ = [
    "ANY",
    "BIGINT",
    "BOOLEAN",
    "BYTES",
    "DATE",
    "DOUBLE",
    "INTEGER",
    "STRING",
    "TIME",
    "TIMESTAMP",
    "Column",
    "CompiledSerde",
    "DataType",
    "Format",
    "FormatSpec",
    "Kind",
    "ObjectCodec",
    "Row",
    "Serde",
    "array",
    "check_columns",
    "columns_of",
    "decimal",
    "format_of",
    "is_object_class",
    "java_double_text",
    "map_of",
    "object_codec",
    "opaque",
    "serde",
    "struct",
]
