"""Transactions: producer epochs, what belongs to a transaction, and its end, kept in `__transaction_state`."""

from .config import TransactionConfig
from .coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator
from .handlers import handlers

__all__ = ["TRANSACTIONS_TOPIC", "TransactionConfig", "TransactionCoordinator", "handlers"]
