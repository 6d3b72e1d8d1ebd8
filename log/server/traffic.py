"""What the connections of a broker did: requests and their durations by API, bytes in and out. Plain: on the hot path."""

from __future__ import annotations

from logflume.log.histogram import Histogram


class Traffic:
    """Counters of all connections.

    Attributes:
        requests: durations by API key, from when a request was handed over until its answer was ready.
        failed: requests that ended their connection: bytes that are no request, a version that is not handled, a fault.
    """

    __slots__ = ("failed", "received_bytes", "requests", "sent_bytes")

    def __init__(self) -> None:
        self.requests: dict[int, Histogram] = {}
        self.received_bytes = self.sent_bytes = self.failed = 0

    def observe(self, api_key: int, seconds: float) -> None:
        histogram = self.requests.get(api_key)
        if histogram is None:
            histogram = self.requests[api_key] = Histogram()
        histogram.observe(seconds)
