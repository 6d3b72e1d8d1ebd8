"""How much a user, a client id or an address may use: limits, measured rates, and how long who exceeds them is muted. Pure."""

from .entities import Entity, QuotaTable
from .limiter import MutationQuota, Quotas

__all__ = ["Entity", "MutationQuota", "QuotaTable", "Quotas"]
