"""Records of the coordinators' topics in words: offset commits, groups, transactions, share groups (Kafka's formats)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from enum import Enum

from logflume.log.broker.groups.epoch_records import decode_epoch_key
from logflume.log.broker.groups.epoch_values import decode_epoch_value
from logflume.log.broker.groups.journal_records import OffsetKey, decode_group_value, decode_key, decode_offset_value
from logflume.log.broker.share.state_records import decode_state_key, decode_state_value
from logflume.log.broker.transactions import journal_records as transactions
from logflume.log.errors import LogflumeError

Shown = Callable[[bytes | None, bytes | None], tuple[object, object]]


def text(key: bytes | None, value: bytes | None) -> tuple[object, object]:
    """Show bytes as text; what is not UTF-8 as escapes."""
    return _text(key), _text(value)


def offsets(key: bytes | None, value: bytes | None) -> tuple[object, object]:
    """Show a record of `__consumer_offsets`; one of a kind that is not known, or malformed, as text."""
    if key is None:
        return text(key, value)
    try:
        plain = decode_key(key)
        if plain is not None:
            decode = decode_offset_value if isinstance(plain, OffsetKey) else decode_group_value
            return _fields(plain), None if value is None else _fields(decode(value))
        epoch = decode_epoch_key(key)
        if epoch is not None:
            return _fields(epoch), None if value is None else _fields(decode_epoch_value(epoch, value))
    except (LogflumeError, ValueError):
        return text(key, value)
    return text(key, value)


def transaction_state(key: bytes | None, value: bytes | None) -> tuple[object, object]:
    """Show a record of `__transaction_state`."""
    try:
        transactional_id = transactions.decode_key(key) if key is not None else None
        if transactional_id is None:
            return text(key, value)
        shown = None if value is None else _fields(transactions.decode_value(transactional_id, value))
    except (LogflumeError, ValueError):
        return text(key, value)
    return {"transactional_id": transactional_id}, shown


def share_state(key: bytes | None, value: bytes | None) -> tuple[object, object]:
    """Show a record of `__share_group_state`."""
    if key is None:
        return text(key, value)
    try:
        share, version = decode_state_key(key)
        shown = {"group_id": share.group_id, "topic_id": share.topic_id.hex(), "partition": share.partition}
        return shown, None if value is None else _fields(decode_state_value(version, value))
    except (LogflumeError, ValueError):
        return text(key, value)


DECODERS: dict[str, Shown] = {"text": text, "offsets": offsets, "transactions": transaction_state, "share": share_state}
BY_TOPIC = {"__consumer_offsets": "offsets", "__transaction_state": "transactions", "__share_group_state": "share"}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


def _fields(value: object) -> object:
    """Return dataclasses as dicts, bytes as text, sets as sorted lists, enums by name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _fields(each) for name, each in asdict(value).items()}
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {str(name): _fields(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_fields(each) for each in value), key=repr)
    if isinstance(value, list | tuple):
        return [_fields(each) for each in value]
    return value
