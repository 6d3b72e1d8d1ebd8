"""The client of a log: `connect`, producers, consumers, admin, over TCP, a Unix socket or inside the process."""

from .aio import AsyncAdmin, AsyncConsumer, AsyncLog, AsyncProducer, connect_async
from .consumer import is_rebalance
from .errors import (
    ClientClosed,
    LoginRefused,
    LogTruncated,
    OffsetOutOfRange,
    ProducerFenced,
    RecordsRefused,
    TransactionMustAbort,
)
from .log import Log, connect
from .owner import LocalData, connect_as_owner, local_data
from .profiles import Profile, Profiles, check_profile_name, config_path, load_profiles, save_profiles
from .security import Security
from .users import check_login, security_as
from .where import default_broker, default_where

__all__ = [
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncLog",
    "AsyncProducer",
    "ClientClosed",
    "LocalData",
    "Log",
    "LogTruncated",
    "LoginRefused",
    "OffsetOutOfRange",
    "ProducerFenced",
    "Profile",
    "Profiles",
    "RecordsRefused",
    "Security",
    "TransactionMustAbort",
    "check_login",
    "check_profile_name",
    "config_path",
    "connect",
    "connect_as_owner",
    "connect_async",
    "is_rebalance",
    "default_broker",
    "default_where",
    "load_profiles",
    "local_data",
    "save_profiles",
    "security_as",
]
