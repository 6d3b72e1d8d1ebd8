"""Finds the instances of an application through its group, and asks them."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from logflume.log import LogflumeError, LoginRefused
from logflume.log.interfaces import Admin
from logflume.log.page_door import Asker
from logflume.streams.seams import Entry
from logflume.streams.state import EntryCodec

from .endpoint import HTTPS
from .positions import addresses
from .reads import PAGE_ROWS, Answer, Ask, Held

_decode_answer = msgspec.msgpack.Decoder(Answer).decode

_TIMEOUT_S = 5.0
_PAUSE_S = 0.05
_REFUSED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


class StoreUnavailable(LogflumeError):
    """Nobody answers for partitions of a store: no instance runs, or they are being restored."""

    code = "STORE_UNAVAILABLE"
    is_retriable = True


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store lies: the topics whose partitions its tasks read, how many tasks there are, how entries are written.

    `copy_lag_max`: what a copy may lack that is read where nobody who runs the task answers; None: copies are not read.
    """

    application: str
    store: str
    topics: tuple[str, ...]
    partitions: int
    codec: EntryCodec
    copy_lag_max: int | None = None


class Peers:
    """Reads one store over all instances. `held` tells of each partition what its last answer said. One thread."""

    def __init__(
        self,
        place: StorePlace,
        admin: Admin,
        *,
        timeout_s: float,
        monotonic_s: Callable[[], float],
        sleep: Callable[[float], None],
        asker: Asker | None = None,
    ) -> None:
        self._place = place
        self._asker = asker or Asker(None)
        self._admin = admin
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._at: dict[int, str] = {}
        self._everybody: tuple[str, ...] = ()
        self.held: dict[int, Held] = {}

    @property
    def stream_time_ms(self) -> int:
        """The largest stream time among the partitions that have answered."""
        return max((each.stream_time_ms for each in self.held.values()), default=-1)

    def get(self, key: bytes) -> Entry | None:
        """Return the entry at a key, whichever partition has it."""
        found = [row for rows in self._ask_all(range(self._place.partitions), self._asking(key)) for row in rows]
        return self._place.codec.decode(found[0][1]) if found else None

    def range(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Yield the entries with start <= key < stop, in order of keys; each page of a partition is one moment."""
        import heapq

        parts = [self._partition(partition, start, stop) for partition in range(self._place.partitions)]
        decode = self._place.codec.decode
        for key, data in heapq.merge(*parts, key=lambda row: row[0]):
            yield key, decode(data)

    def _partition(self, partition: int, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            ask = msgspec.structs.replace(self._asking(start), is_range=True, stop=stop)
            (page,) = self._ask_all([partition], ask)
            yield from page
            if len(page) < PAGE_ROWS:
                return
            start = page[-1][0] + b"\0"

    def _asking(self, key: bytes) -> Ask:
        return Ask(self._place.store, [], key, copy_lag_max=self._place.copy_lag_max)

    def _ask_all(self, partitions: Iterable[int], ask: Ask) -> list[list[tuple[bytes, bytes]]]:
        """Ask whoever holds these partitions, and again those that did not answer, until the timeout.

        Raises:
            StoreUnavailable: which partitions nobody has answered for.
        """
        left, found = set(partitions), list[list[tuple[bytes, bytes]]]()
        end_s = self._monotonic_s() + self._timeout_s
        is_current, silent = False, set[str]()
        while left:
            for address, wanted, may_copy in self._whom(left, is_current):
                asked = sorted(left.intersection(wanted))
                if not asked or address in silent:
                    continue
                most = ask.copy_lag_max if may_copy else None
                question = msgspec.structs.replace(ask, partitions=asked, copy_lag_max=most)
                answer = _ask(address, question, self._asker)
                if answer is None:
                    silent.add(address)
                    continue
                if answer.held:  # else it has given them up
                    found.append(answer.rows)
                self.held.update({each.partition: each for each in answer.held})
                left.difference_update(each.partition for each in answer.held)
            if left and is_current and self._monotonic_s() > end_s:
                raise StoreUnavailable(
                    f"nobody answers for partitions {sorted(left)} of store {self._place.store!r} within {self._timeout_s:g} s: "
                    f"is an instance of {self._place.application!r} running, with an endpoint? While it restores, ask again"
                )
            if left and is_current:
                self._sleep(_PAUSE_S)
                silent.clear()
            if left:
                self._find()
                is_current = True
        return found

    def _whom(self, partitions: Iterable[int], is_current: bool) -> Iterator[tuple[str, list[int], bool]]:
        """Yield whom to ask for what, and whether a copy will do: who runs the tasks, then all others for what is left.

        `is_current`: the group has just been asked who runs them. Else copies are left alone: somebody may run what has moved.
        """
        by_address: dict[str, list[int]] = {}
        for partition in sorted(partitions):
            if partition in self._at:
                by_address.setdefault(self._at[partition], []).append(partition)
        yield from ((address, wanted, False) for address, wanted in by_address.items())
        if is_current and self._place.copy_lag_max is not None:
            yield from ((address, sorted(partitions), True) for address in self._everybody)

    def _find(self) -> None:
        """Look up in the group who runs which task."""
        found = addresses(self._admin.group_offsets(self._place.application))
        self._at = {partition.partition: at for partition, at in found.items() if partition.topic in self._place.topics}
        self._everybody = tuple(sorted(set(found.values())))


def _ask(address: str, ask: Ask, asker: Asker) -> Answer | None:
    """Return what an instance answers, None when it does not. Raises LoginRefused: it does not for who asks."""
    try:
        body = request(address, "POST", "/read", asker, msgspec.msgpack.encode(ask))
        return _decode_answer(body)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None


def request(address: str, method: str, path: str, asker: Asker, body: bytes = b"") -> bytes:
    """Return the body of an instance's answer.

    Raises OSError or HTTPException: there is none. LoginRefused: not for who asks, or it is not who it should be.
    """
    is_secured = address.startswith(HTTPS)
    host, _, port = address.removeprefix(HTTPS).rpartition(":")
    connection = (
        http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=asker.context())
        if is_secured
        else http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
    )
    try:
        connection.request(method, path, body, asker.headers() if is_secured else {})
        response = connection.getresponse()
        content = response.read()
        if response.status in _REFUSED:
            raise LoginRefused(f"the instance at {address} refuses this login ({response.status}): {response.reason}")
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"{address}{path} answers {response.status} {response.reason}")
        return content
    except ssl.SSLCertVerificationError as error:
        raise LoginRefused(f"the instance at {address} shows no good certificate: {error.verify_message}") from None
    finally:
        connection.close()


def instances(admin: Admin, application: str) -> tuple[str, ...]:
    """Return the addresses at which the instances of an application answered when they last committed."""
    return tuple(sorted(set(addresses(admin.group_offsets(application)).values())))


def statuses(where: Iterable[str], asker: Asker) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (address, status as JSON gives it) of the instances that answer. Raises LoginRefused: one does not for who asks."""
    for address in where:
        try:
            yield address, msgspec.json.decode(request(address, "GET", "/status", asker))
        except (OSError, http.client.HTTPException, msgspec.MsgspecError):
            continue
