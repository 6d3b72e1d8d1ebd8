"""The words of ACLs with their codes on the wire (KIP-11, KIP-290): resource types, operations, pattern types, permissions."""

from __future__ import annotations

from enum import IntEnum

from logflume.log.protocol import ErrorCode

CLUSTER_NAME = "kafka-cluster"
"""The one name of a resource of type cluster."""
WILDCARD = "*"


class Resource(IntEnum):
    """Types of resources; UNKNOWN and ANY occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def refusal(self) -> ErrorCode:
        """The error of a request that may not use such a resource."""
        return _REFUSALS[self]


_REFUSALS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class Operation(IntEnum):
    """Operations; UNKNOWN and ANY occur in filters only, ALL in ACLs."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Pattern(IntEnum):
    """How the name of an ACL is compared; UNKNOWN, ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What an ACL does; UNKNOWN and ANY occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_OP = Operation
IMPLIED_BY = {
    _OP.DESCRIBE: frozenset({_OP.DESCRIBE, _OP.READ, _OP.WRITE, _OP.DELETE, _OP.ALTER}),
    _OP.DESCRIBE_CONFIGS: frozenset({_OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS}),
}
"""Which allowed operations allow another one too. A denial implies nothing."""

SUPPORTED = {
    Resource.TOPIC: (
        _OP.READ, _OP.WRITE, _OP.CREATE, _OP.DELETE, _OP.ALTER, _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS,
    ),
    Resource.GROUP: (_OP.READ, _OP.DELETE, _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS),
    Resource.CLUSTER: (
        _OP.CREATE, _OP.ALTER, _OP.DESCRIBE, _OP.CLUSTER_ACTION, _OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS, _OP.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (_OP.WRITE, _OP.DESCRIBE, _OP.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (_OP.DESCRIBE,),
    Resource.USER: (_OP.CREATE_TOKENS, _OP.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that each type of resource knows, as `authorized operations` fields report them."""
