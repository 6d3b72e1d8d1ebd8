"""One transaction of the log around a block: committed at its end, aborted when it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from logflume.log import KafkaError, LogflumeError, Producer, TransportError

TRANSACTION_TIMEOUT_MS = 60_000
_FENCED = ("FENCED_INSTANCE_ID", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


@contextmanager
def transaction(producer: Producer, *, clock_s: Callable[[], float]) -> Iterator[None]:
    """Begin, run the block, commit. What goes wrong aborts it, and the error that led there is the one raised.

    Raises:
        TransportError: the transaction was open for so long that the broker ended it; trying again may help.
        KafkaError: fenced (`is_fenced`): another task has the transactional id.
    """
    began_s = clock_s()
    producer.begin_transaction()
    try:
        yield
        producer.commit_transaction()
    except BaseException as error:
        with suppress(LogflumeError):
            producer.abort_transaction()
        open_ms = (clock_s() - began_s) * 1000
        if is_fenced(error) and open_ms >= TRANSACTION_TIMEOUT_MS:
            raise TransportError(f"a transaction was open for {open_ms:.0f} ms, longer than the broker lets it") from error
        raise


def is_fenced(error: BaseException) -> bool:
    """Return whether an error says that another producer or group member has this one's place."""
    return isinstance(error, KafkaError) and error.code in _FENCED
