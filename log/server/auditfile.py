"""The file of the audit log: its owner's alone, and a bounded number of older ones (`FILE.1` is the newest of them)."""

from __future__ import annotations

import logging
import os
from logging.handlers import RotatingFileHandler

from logflume.log.errors import StorageError

MAX_FILE_BYTES, OLD_FILES = 100 * 1024 * 1024, 10


class AuditFile:
    """Appends lines. A disk that refuses is told of in the broker's log; requests are served on."""

    def __init__(self, path: str) -> None:
        """Raises StorageError: the file cannot be written."""
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._handler = _Handler(path, maxBytes=MAX_FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"the audit log {path} cannot be written: {error.strerror or error}") from error

    def write(self, line: str) -> None:
        self._handler.emit(logging.LogRecord("logflume.audit", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()


class _Handler(RotatingFileHandler):
    def _open(self):  # type: ignore[no-untyped-def]
        opened = super()._open()
        os.fchmod(opened.fileno(), 0o600)
        return opened

    def handleError(self, record: logging.LogRecord) -> None:
        logging.getLogger("logflume.server").exception("a line of the audit log could not be written")
