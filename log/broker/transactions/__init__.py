"""Transactions: producer epochs, what belongs to a transaction, and its end, kept in `__transaction_state`."""

from .config import TransactionConfig
from .coordinator import TransactionCoordinator
from .handlers import handlers

__all__ = ["TransactionConfig", "TransactionCoordinator", "handlers"]
