"""Who may do what: ACLs, the rights of a principal, and what they are checked for. Pure; no I/O of its own."""

from .authorizer import OWNER, AclAuthorizer
from .rights import UNRESTRICTED, Rights
from .words import CLUSTER_NAME, Operation, Pattern, Permission, Resource

__all__ = ["CLUSTER_NAME", "OWNER", "UNRESTRICTED", "AclAuthorizer", "Operation", "Pattern", "Permission", "Resource", "Rights"]
