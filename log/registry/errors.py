"""The registry's errors as one table: name, HTTP status, code of Confluent's interface, message.

A caller sees `{"error_code": code, "message": text}` with the status. Codes and messages are those that existing clients test
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from logflume.log.errors import LogflumeError


@dataclass(frozen=True, slots=True)
class Kind:
    """One line of the table; `text` has places for the arguments of `RegistryError`."""

    status: int
    code: int
    text: str


class Fault(Enum):
    """What can be wrong with a request."""

    SUBJECT_NOT_FOUND = Kind(404, 40401, "Subject '{}' not found.")
    VERSION_NOT_FOUND = Kind(404, 40402, "Version {} not found.")
    SCHEMA_NOT_FOUND = Kind(404, 40403, "Schema {}not found")
    SUBJECT_SOFT_DELETED = Kind(404, 40404, "Subject '{}' was soft deleted. Set permanent=true to delete permanently")
    SUBJECT_NOT_SOFT_DELETED = Kind(404, 40405, "Subject '{}' was not deleted first before being permanently deleted")
    VERSION_SOFT_DELETED = Kind(404, 40406, "Subject '{}' Version {} was soft deleted. Set permanent=true to delete permanently")
    VERSION_NOT_SOFT_DELETED = Kind(404, 40407, "Subject '{}' Version {} was not deleted first before being permanently deleted")
    CONFIG_NOT_FOUND = Kind(404, 40408, "Subject '{}' does not have subject-level compatibility configured")
    MODE_NOT_FOUND = Kind(404, 40409, "Subject '{}' does not have subject-level mode configured")
    PATH_NOT_FOUND = Kind(404, 404, "HTTP 404 Not Found: {}")
    METHOD_NOT_ALLOWED = Kind(405, 405, "HTTP 405 Method Not Allowed: {}")
    INCOMPATIBLE = Kind(
        409, 409, 'Schema being registered is incompatible with an earlier schema for subject "{}", details: [{}]'
    )
    BODY_TOO_LARGE = Kind(413, 413, "a request holds at most {} bytes")
    UNREADABLE = Kind(400, 400, "{}")
    INVALID_SCHEMA = Kind(422, 42201, "{}")
    INVALID_VERSION = Kind(
        422,
        42202,
        "The specified version '{}' is not a valid version id. Allowed values are between [1, 2^31-1] and the string \"latest\"",
    )
    INVALID_LEVEL = Kind(
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, forward_transitive, "
        "and full_transitive",
    )
    INVALID_MODE = Kind(422, 42204, "{}")
    NOT_PERMITTED = Kind(422, 42205, "{}")
    REFERENCE_EXISTS = Kind(422, 42206, "One or more references exist to the schema {}.")
    ID_DOES_NOT_MATCH = Kind(422, 42207, "{}")
    INVALID_SUBJECT = Kind(422, 42208, "The specified subject '{}' is not a valid subject.")
    TOO_LARGE = Kind(422, 42209, "{}")
    INVALID_RULE_SET = Kind(422, 42210, "{}")
    CONTEXT_NOT_EMPTY = Kind(422, 42211, "The specified context '{}' is not empty.")
    INVALID_VALUE = Kind(422, 422, "{}")
    UNAUTHORIZED = Kind(401, 401, "Unauthorized: the registry asks for a user and password, or a token")
    DENIED = Kind(403, 40301, "User '{}' is denied operation {} on Subject: {}")
    NOT_OFFERED = Kind(501, 501, "{}")
    STORE = Kind(500, 50001, "{}")
    TIMEOUT = Kind(500, 50002, "{}")
    FORWARDING = Kind(500, 50003, "{}")
    NO_WRITER = Kind(500, 50004, "{}")
    INTERNAL = Kind(500, 50001, "the registry failed; its log has the cause")


class RegistryError(LogflumeError):
    """A request that was refused; nothing has been changed."""

    code = "REGISTRY_ERROR"

    def __init__(self, fault: Fault, *arguments: object) -> None:
        super().__init__(fault.value.text.format(*arguments))
        self.fault = fault
        self.is_retriable = fault in (Fault.STORE, Fault.TIMEOUT, Fault.FORWARDING, Fault.NO_WRITER)
