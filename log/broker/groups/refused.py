"""A request that a group refuses, before anything has changed."""

from __future__ import annotations

from logflume.log.protocol.errors import ErrorCode


class Refused(Exception):
    """Carries the error code and the text for the client."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
