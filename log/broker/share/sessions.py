"""Share sessions: what a member fetches, remembered by the broker so that requests say only what changes (KIP-932).

Epoch 0 opens a session, -1 closes it, else each request has the next number. A session belongs to the connection it was opened
on and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from logflume.log.protocol.errors import ErrorCode

FINAL_EPOCH, INITIAL_EPOCH, LAST_EPOCH = -1, 0, 2**31 - 1
MAX_SESSION_PARTITIONS = 20_000

SessionKey = tuple[str, str]
"""Group id and member id."""
TopicPartitionId = tuple[bytes, int]


class SessionRefused(Exception):
    """The session is not known, its epoch is not the expected one, or there is no room for it."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class ShareSession:
    """A session. `epoch`: that of the next request."""

    __slots__ = ("connection_id", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection_id: int, partitions: Iterable[TopicPartitionId]) -> None:
        self.key, self.connection_id, self.epoch = key, connection_id, INITIAL_EPOCH + 1
        self.partitions = dict.fromkeys(partitions)


class ShareSessions:
    """All share sessions of the broker, at most `max_sessions` with at most MAX_SESSION_PARTITIONS each."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, dict[SessionKey, ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession:
        """Return a session. Raises SessionRefused."""
        session = self._sessions.get(key)
        if session is None:
            raise SessionRefused(ErrorCode.SHARE_SESSION_NOT_FOUND, f"Member {key[1]} has no share session in group {key[0]}.")
        return session

    def open(self, key: SessionKey, connection_id: int, partitions: list[TopicPartitionId]) -> ShareSession:
        """Open a session in place of one that the member may have. Raises SessionRefused."""
        session = ShareSession(key, connection_id, partitions)
        _check_size(session.partitions)
        self.close(key)
        if len(self._sessions) >= self._max_sessions:
            text = f"There are {self._max_sessions} share sessions (group.share.max.share.sessions); try again later."
            raise SessionRefused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, text)
        self._sessions[key] = self._by_connection.setdefault(connection_id, {})[key] = session
        return session

    def advance(
        self, key: SessionKey, epoch: int, *, added: Iterable[TopicPartitionId] = (), forgotten: Iterable[TopicPartitionId] = ()
    ) -> ShareSession:
        """Take a request of a session. Raises SessionRefused."""
        session = self.get(key)
        if epoch != session.epoch:
            text = f"Expected epoch {session.epoch} of the share session, found {epoch}."
            raise SessionRefused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, text)
        more, less = dict.fromkeys(added), frozenset(forgotten)
        if more or less:
            partitions = {each: None for each in session.partitions | more if each not in less}
            _check_size(partitions)
            session.partitions = partitions
        session.epoch = INITIAL_EPOCH + 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """Close a session if there is one."""
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        others = self._by_connection[session.connection_id]
        del others[key]
        if not others:
            del self._by_connection[session.connection_id]
        return session

    def of_connection(self, connection_id: int) -> list[SessionKey]:
        """Return the sessions of a connection."""
        return list(self._by_connection.get(connection_id, ()))


def _check_size(partitions: Sized) -> None:
    if len(partitions) > MAX_SESSION_PARTITIONS:
        text = f"A share session has at most {MAX_SESSION_PARTITIONS} partitions, this would have {len(partitions)}."
        raise SessionRefused(ErrorCode.INVALID_REQUEST, text)
