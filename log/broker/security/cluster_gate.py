"""APIs that need a right on the cluster as a whole: which right, and what each answers to those who do not have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import ErrorCode, MessageBase, messages, tables

_OP = Operation
CLUSTER_RIGHTS: dict[str, tuple[Operation, ...]] = {
    "DescribeAcls": (_OP.DESCRIBE,),
    "CreateAcls": (_OP.ALTER,),
    "DeleteAcls": (_OP.ALTER,),
    "AlterReplicaLogDirs": (_OP.ALTER,),
    "DescribeLogDirs": (_OP.DESCRIBE,),
    "WriteTxnMarkers": (_OP.ALTER, _OP.CLUSTER_ACTION),
    "ElectLeaders": (_OP.ALTER,),
    "AlterPartitionReassignments": (_OP.ALTER,),
    "ListPartitionReassignments": (_OP.DESCRIBE,),
    "DescribeClientQuotas": (_OP.DESCRIBE_CONFIGS,),
    "AlterClientQuotas": (_OP.ALTER_CONFIGS,),
    "DescribeUserScramCredentials": (_OP.DESCRIBE,),
    "AlterUserScramCredentials": (_OP.ALTER,),
    "DescribeQuorum": (_OP.DESCRIBE,),
    "UpdateFeatures": (_OP.ALTER,),
    "UnregisterBroker": (_OP.ALTER,),
    "ListConfigResources": (_OP.DESCRIBE_CONFIGS,),
    "AddRaftVoter": (_OP.ALTER,),
    "RemoveRaftVoter": (_OP.ALTER,),
    "InitializeShareGroupState": (_OP.CLUSTER_ACTION,),
    "ReadShareGroupState": (_OP.CLUSTER_ACTION,),
    "WriteShareGroupState": (_OP.CLUSTER_ACTION,),
    "DeleteShareGroupState": (_OP.CLUSTER_ACTION,),
    "ReadShareGroupStateSummary": (_OP.CLUSTER_ACTION,),
}
"""API -> operations on the cluster, one of which is needed."""

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def rights_by_key() -> dict[int, tuple[Operation, ...]]:
    """Return `CLUSTER_RIGHTS` by API key."""
    keys = tables.api_names()
    return {keys[name]: operations for name, operations in CLUSTER_RIGHTS.items() if name in keys}


def is_let_in(context: RequestContext, operations: Iterable[Operation]) -> bool:
    """Whether who asks has one of these rights on the cluster."""
    first, *others = operations
    if any(context.rights.allows(operation, Resource.CLUSTER, CLUSTER_NAME) for operation in others):
        return True
    return context.may(first, Resource.CLUSTER, CLUSTER_NAME)


def refuse(api_key: int, request: MessageBase) -> MessageBase:
    """Return the answer of an API that says CLUSTER_AUTHORIZATION_FAILED: on top, and for each thing that was asked for."""
    name = tables.api(api_key).name
    response: MessageBase = messages.message_class(f"{name}Response")()
    if hasattr(response, "error_code"):
        response.error_code = REFUSED
        if hasattr(response, "error_message"):
            response.error_message = REFUSED.text
    fill = _PARTS.get(name)
    if fill is not None:
        fill(request, response)
    return response


def _create_acls(request: messages.CreateAclsRequest, response: messages.CreateAclsResponse) -> None:
    response.results = [response.AclCreationResult(error_code=REFUSED, error_message=REFUSED.text) for _ in request.creations]


def _delete_acls(request: messages.DeleteAclsRequest, response: messages.DeleteAclsResponse) -> None:
    result = response.DeleteAclsFilterResult
    response.filter_results = [result(error_code=REFUSED, error_message=REFUSED.text) for _ in request.filters]


def _alter_replica_log_dirs(request: messages.AlterReplicaLogDirsRequest, response: messages.AlterReplicaLogDirsResponse) -> None:
    partition = response.AlterReplicaLogDirPartitionResult
    response.results = [
        response.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=[partition(partition_index=index, error_code=REFUSED) for index in topic.partitions],
        )
        for directory in request.dirs
        for topic in directory.topics
    ]


def _write_txn_markers(request: messages.WriteTxnMarkersRequest, response: messages.WriteTxnMarkersResponse) -> None:
    partition = response.WritableTxnMarkerPartitionResult
    response.markers = [
        response.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=[
                response.WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=[partition(partition_index=index, error_code=REFUSED) for index in topic.partition_indexes],
                )
                for topic in marker.topics
            ],
        )
        for marker in request.markers
    ]


def _elect_leaders(request: messages.ElectLeadersRequest, response: messages.ElectLeadersResponse) -> None:
    partition = response.PartitionResult
    response.replica_election_results = [
        response.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                partition(partition_id=index, error_code=REFUSED, error_message=REFUSED.text) for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]


def _describe_client_quotas(
    request: messages.DescribeClientQuotasRequest, response: messages.DescribeClientQuotasResponse
) -> None:
    response.entries = None


def _alter_client_quotas(request: messages.AlterClientQuotasRequest, response: messages.AlterClientQuotasResponse) -> None:
    response.entries = [
        response.EntryData(
            error_code=REFUSED,
            error_message=REFUSED.text,
            entity=[response.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity],
        )
        for entry in request.entries
    ]


def _alter_user_scram(
    request: messages.AlterUserScramCredentialsRequest, response: messages.AlterUserScramCredentialsResponse
) -> None:
    result = response.AlterUserScramCredentialsResult
    users = dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)])
    response.results = [result(user=user, error_code=REFUSED, error_message=REFUSED.text) for user in users]


_PARTS: dict[str, Callable[[Any, Any], None]] = {
    "CreateAcls": _create_acls,
    "DeleteAcls": _delete_acls,
    "AlterReplicaLogDirs": _alter_replica_log_dirs,
    "WriteTxnMarkers": _write_txn_markers,
    "ElectLeaders": _elect_leaders,
    "DescribeClientQuotas": _describe_client_quotas,
    "AlterClientQuotas": _alter_client_quotas,
    "AlterUserScramCredentials": _alter_user_scram,
}
"""For APIs whose answer has a part for each thing that was asked for."""
