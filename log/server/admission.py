"""Who may connect: bounds on the number of connections, in all and of one address, and on how fast new ones are taken.

Pure: time is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from logflume.log.broker.settings.lookup import BrokerConfig, parse_overrides


class Admission:
    """Counts connections and says which new one is refused.

    Connections by a Unix socket are not among them: that is the owner's way in when all others are taken.

    Invariant: `open_count` and `_by_host` count the same connections.
    """

    def __init__(self, config: BrokerConfig, *, most_connections: Callable[[], int]) -> None:
        """`most_connections`: how many the process has descriptors for; files come first."""
        self._config, self._most_connections = config, most_connections
        self._by_host: Counter[str] = Counter()
        self._overrides_text = config.text("max.connections.per.ip.overrides")
        self._overrides: Mapping[str, int] = parse_overrides(self._overrides_text)
        self._second, self._taken = 0, 0
        self.open_count = 0
        self.refused: Counter[str] = Counter()
        """Refused connections by the setting that refused them."""

    def pause_s(self, now_s: float) -> float:
        """Return how long no new connection is to be taken (`max.connection.creation.rate`), 0 for not at all."""
        second = int(now_s)
        if second != self._second:
            self._second, self._taken = second, 0
        return second + 1 - now_s if self._taken >= self._config.number("max.connection.creation.rate") else 0.0

    def admit(self, host: str) -> bool:
        """Take a new connection, or count it as refused."""
        reason = self._reason(host)
        if reason:
            self.refused[reason] += 1
            return False
        self._taken += 1
        self.open_count += 1
        self._by_host[host] += 1
        return True

    def left(self, host: str) -> None:
        """Forget a connection that was admitted."""
        self.open_count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _reason(self, host: str) -> str | None:
        if self.open_count >= self._most_connections():
            return "open files (ulimit -n)"
        if self.open_count >= self._config.number("max.connections"):
            return "max.connections"
        text = self._config.text("max.connections.per.ip.overrides")
        if text != self._overrides_text:
            self._overrides, self._overrides_text = parse_overrides(text), text
        limit = self._overrides.get(host)
        if limit is not None and self._by_host[host] >= limit:
            return "max.connections.per.ip.overrides"
        if limit is None and self._by_host[host] >= self._config.number("max.connections.per.ip"):
            return "max.connections.per.ip"
        return None
