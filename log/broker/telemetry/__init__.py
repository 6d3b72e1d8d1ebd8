"""Clients' own metrics (KIP-714): who is asked for which, how often, and what came. Pure."""

from .clients import ClientTelemetry
from .subscriptions import Subscription, SubscriptionStore

__all__ = ["ClientTelemetry", "Subscription", "SubscriptionStore"]
