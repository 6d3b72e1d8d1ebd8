"""Kafka's error codes as one flat table (name, code, is retriable, text), and the exception that carries one.

Names, codes and retriability follow the table "Error Codes" of the Kafka protocol guide (4.3). Code 0 is no error.
"""

from __future__ import annotations

from enum import IntEnum

from logflume.log.errors import LogflumeError


class ErrorCode(IntEnum):
    """An error code of the protocol; an int, so that it can be put into a message as it is."""

    is_retriable: bool
    text: str

    def __new__(cls, code: int, is_retriable: bool, text: str) -> ErrorCode:
        self = int.__new__(cls, code)
        self._value_, self.is_retriable, self.text = code, is_retriable, text
        return self

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way it did not foresee; its log has the cause."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies outside what the partition holds."
    CORRUPT_MESSAGE = 2, True, "A batch fails its checksum or does not have the form of a batch."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "The topic or partition does not exist here."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the leader, or not a replica, of the partition."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed within its timeout."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "A batch is larger than the topic's max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The text beside a committed offset is longer than the broker allows."
    NETWORK_EXCEPTION = 13, True, "The connection was lost before a response came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still reading its log."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator of the group or transactional id."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not valid, or the operation is not allowed on this topic."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "The batch was written, but too few replicas are in sync."
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1 (all), 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member shares no protocol with the rest of the group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's bounds."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The SASL mechanism is not enabled."
    ILLEGAL_SASL_STATE = 34, False, "The request is not allowed in this state of authentication."
    UNSUPPORTED_VERSION = 35, False, "The version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A config is unknown or has a value that is not valid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or lacks something."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The topic's message format does not support this."
    POLICY_VIOLATION = 44, False, "A policy refuses the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The sequence number is not the next one of this producer."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, True, "Another step of the same transactional id is still under way; retry."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "A newer coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, False, "Security features are not enabled."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk refused to read or write."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "Nothing is known of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token belongs to someone else."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Delegation tokens cannot be asked for over this connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for delegation tokens."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The type of principal is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The epoch of the fetch session is not the expected one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener that matches this one."
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is disabled."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression type is not supported here."
    STALE_BROKER_EPOCH = 77, False, "The broker's epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader does not yet know its high watermark."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id in this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica is eligible to lead."
    ELECTION_NOT_NEEDED = 84, True, "The partition has its leader already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "No reassignment is under way."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic."
    INVALID_RECORD = 87, False, "A record is refused by the broker's checks."
    UNSTABLE_OFFSET_COMMIT = 88, True, "An offset commit inside a transaction is still open; retry."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is exceeded; retry later."
    PRODUCER_FENCED = 90, False, "A newer producer with the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, False, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names something twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, False, "The set of voters differs."
    INVALID_UPDATE_VERSION = 95, False, "The version of the update is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "There is no topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, False, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id differs from the one in the log."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster id differs."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic ids and names."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, False, "A new leader was elected."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is in tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch is not the expected one; rejoin."
    UNRELEASED_INSTANCE_ID = 111, False, "The group instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The assignor is not supported."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is out of date; retry with the new one."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The endpoint is of the other kind (broker or controller)."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "There is no such telemetry subscription."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is too large."
    INVALID_REGISTRATION = 119, False, "The broker's registration is not valid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; the producer may go on after that."
    INVALID_RECORD_STATE = 121, False, "The record's delivery state does not allow this."
    SHARE_SESSION_NOT_FOUND = 122, True, "There is no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The epoch of the share session is not the expected one."
    FENCED_STATE_EPOCH = 124, False, "The share group's state epoch is out of date."
    INVALID_VOTER_KEY = 125, False, "The voter's key does not match."
    DUPLICATE_VOTER = 126, False, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must fetch its metadata anew from the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The streams topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "There are too many share sessions."


def error_of(code: int) -> ErrorCode:
    """Return the table's row for a code; UNKNOWN_SERVER_ERROR for a code that is newer than the table.

    >>> error_of(10).name
    'MESSAGE_TOO_LARGE'
    """
    known = ErrorCode._value2member_map_.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert isinstance(known, ErrorCode)
    return known


class KafkaError(LogflumeError):
    """A broker answered with an error code. `code` is its name, `error` the row of the table, `number` the code as sent,
    `detail` the message without them."""

    def __init__(
        self, number: int, message: str | None = None, *, topic: str | None = None, partition: int | None = None
    ) -> None:
        self.number, self.error = number, error_of(number)
        self.code, self.is_retriable = self.error.name, self.error.is_retriable
        self.topic, self.partition = topic, partition
        self.detail = message or self.error.text
        where = "" if topic is None else f" ({topic})" if partition is None else f" ({topic}-{partition})"
        super().__init__(f"{self.code} {number}{where}: {self.detail}")


def detail_of(error: Exception) -> str:
    """Return what an error says, without the code that an answer carries beside it."""
    return error.detail if isinstance(error, KafkaError) else str(error)
