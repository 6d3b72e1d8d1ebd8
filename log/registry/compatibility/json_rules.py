"""The rules of JSON Schema compatibility as data: which differences a reader can live with, and how the others are told.

A difference is seen from the old schema to the new one, which must accept whatever the old one accepted. Under the LENIENT policy
an open content model counts as if nobody wrote what it does not name.
"""

from __future__ import annotations

_BOUNDS = ("MAX_LENGTH", "MAXIMUM", "EXCLUSIVE_MAXIMUM", "MAX_PROPERTIES", "MAX_ITEMS", "MAX_CONTAINS")
_FLOORS = ("MIN_LENGTH", "MINIMUM", "EXCLUSIVE_MINIMUM", "MIN_PROPERTIES", "MIN_ITEMS", "MIN_CONTAINS")

COMPATIBLE = frozenset(
    {
        *("ID_CHANGED", "DESCRIPTION_CHANGED", "TITLE_CHANGED", "DEFAULT_CHANGED", "SCHEMA_REMOVED", "TYPE_EXTENDED"),
        *(f"{name}_INCREASED" for name in _BOUNDS),
        *(f"{name}_DECREASED" for name in _FLOORS),
        *(f"{name}_REMOVED" for name in (*_BOUNDS, *_FLOORS, "PATTERN", "MULTIPLE_OF", "UNIQUE_ITEMS")),
        *("MULTIPLE_OF_REDUCED", "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED", "REQUIRED_ATTRIBUTE_REMOVED"),
        *("DEPENDENCY_ARRAY_NARROWED", "DEPENDENCY_ARRAY_REMOVED", "DEPENDENCY_SCHEMA_REMOVED"),
        *(
            f"{name}_{how}"
            for name in ("ADDITIONAL_PROPERTIES", "UNEVALUATED_PROPERTIES", "ADDITIONAL_ITEMS", "UNEVALUATED_ITEMS")
            for how in ("ADDED", "EXTENDED")
        ),
        "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL",
        "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL",
        "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL",
        "ITEM_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "ITEM_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        *("ENUM_ARRAY_EXTENDED", "COMBINED_TYPE_EXTENDED", "PRODUCT_TYPE_NARROWED", "SUM_TYPE_EXTENDED", "NOT_TYPE_NARROWED"),
    }
)
COMPATIBLE_IF_LENIENT = COMPATIBLE | {
    *("ADDITIONAL_PROPERTIES_NARROWED", "ADDITIONAL_PROPERTIES_REMOVED"),
    *("UNEVALUATED_PROPERTIES_NARROWED", "UNEVALUATED_PROPERTIES_REMOVED"),
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
    "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
}

_ADDED = "The keyword at path '{place}' in the {{}} schema is not present in the {{}} schema"
_MORE = "The value at path '{place}' in the {{}} schema is more than its value in the {{}} schema"
_LESS = "The value at path '{place}' in the {{}} schema is less than its value in the {{}} schema"
_DIFFERENT = "The value at path '{place}' is different between the {{}} and {{}} schema"
_FEWER = "An array or combined type at path '{place}' has fewer elements in the {{}} schema than the {{}} schema"
_MORE_ELEMENTS = "An array or combined type at path '{place}' has more elements in the {{}} schema than the {{}} schema"
_TYPE = "A type at path '{place}' is different between the {{}} schema and the {{}} schema"
_OPEN = (
    "The {{}} schema has an open content model and has a property or item at path '{place}' which is missing in the {{}} schema"
)
_UNCOVERED = "which is missing in the {{}} schema and is not covered by its partially open content model"

DESCRIPTIONS = {
    **dict.fromkeys(
        (
            *(f"{name}_ADDED" for name in (*_BOUNDS, *_FLOORS, "MULTIPLE_OF", "PATTERN", "UNIQUE_ITEMS")),
            *("REQUIRED_ATTRIBUTE_ADDED", "DEPENDENCY_ARRAY_ADDED", "DEPENDENCY_SCHEMA_ADDED", "SCHEMA_ADDED"),
            *("ADDITIONAL_ITEMS_REMOVED", "ADDITIONAL_PROPERTIES_REMOVED"),
            *("UNEVALUATED_PROPERTIES_REMOVED", "UNEVALUATED_ITEMS_REMOVED"),
        ),
        _ADDED,
    ),
    **dict.fromkeys((*(f"{name}_INCREASED" for name in _FLOORS), "MULTIPLE_OF_EXPANDED"), _MORE),
    **dict.fromkeys((f"{name}_DECREASED" for name in _BOUNDS), _LESS),
    **dict.fromkeys(("PATTERN_CHANGED", "MULTIPLE_OF_CHANGED", "DEPENDENCY_ARRAY_CHANGED"), _DIFFERENT),
    **dict.fromkeys(
        (
            *("ADDITIONAL_ITEMS_NARROWED", "ENUM_ARRAY_NARROWED", "SUM_TYPE_NARROWED", "ADDITIONAL_PROPERTIES_NARROWED"),
            *("UNEVALUATED_PROPERTIES_NARROWED", "UNEVALUATED_ITEMS_NARROWED"),
        ),
        _FEWER,
    ),
    **dict.fromkeys(
        ("DEPENDENCY_ARRAY_EXTENDED", "PRODUCT_TYPE_EXTENDED", "NOT_TYPE_EXTENDED"),
        _MORE_ELEMENTS,
    ),
    **dict.fromkeys(
        ("TYPE_CHANGED", "TYPE_NARROWED", "COMBINED_TYPE_CHANGED", "COMBINED_TYPE_SUBSCHEMAS_CHANGED", "ENUM_ARRAY_CHANGED"),
        _TYPE,
    ),
    **dict.fromkeys(
        (
            "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
            "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
            "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
            "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
        ),
        _OPEN,
    ),
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": (
        "The {{}} schema has an unopen content model and has a required property at path '{place}' "
        "which is missing in the {{}} schema"
    ),
    **dict.fromkeys(
        ("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
        "The {{}} has a closed content model and is missing a property or item present at path '{place}' in the {{}} schema",
    ),
    **dict.fromkeys(
        (
            "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        ),
        "A property or item is missing in the {{}} schema but present at path '{place}' in the {{}} schema "
        "and is not covered by its partially open content model",
    ),
    **dict.fromkeys(
        ("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"),
        "The {{}} schema has a property or item at path '{place}' " + _UNCOVERED,
    ),
}
"""By rule; `{place}` is the path."""
