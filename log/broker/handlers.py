"""Which function handles which API: the broker's table of APIs, and what happens to a request on its way to them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, Protocol

from logflume.log.errors import LogflumeError, StorageError
from logflume.log.protocol import ErrorCode, KafkaError, MessageBase, messages, tables

from .access import CLUSTER_NAME, Operation, Resource
from .apis import acls as acls_api
from .apis import cluster as cluster_api
from .apis import configs as configs_api
from .apis import metadata
from .apis import offsets as offsets_api
from .apis import one_node as one_node_api
from .apis import quotas as quotas_api
from .apis import sasl as sasl_api
from .apis import scram as scram_api
from .apis import telemetry as telemetry_api
from .apis import tokens as tokens_api
from .apis import topics as topics_api
from .apis.fetch import FetchHandler
from .apis.produce import ProduceHandler
from .complaints import Complaints
from .core import Core
from .patterns import judged
from .ports import TxnAdmission
from .replies import Reply, as_reply
from .requests import CLOSE_CONNECTION, Handler, RequestContext
from .security import cluster_gate
from .security.audit import Audit
from .state.features import refuse_disabled
from .turns.slices import Steps
from .turns.splitting import SPLITS, in_slices

API_VERSIONS = 18
MAX_ELEMENTS, MAX_WHOLE_ELEMENTS = 100_000, 10_000
"""Elements in the arrays of a request that is handled in slices, and that may be of any other: those are handled in one go."""
GENERATORS = (
    "ListGroups", "ListTransactions", "AddPartitionsToTxn", "Metadata", "CreateTopics", "DeleteTopics", "CreatePartitions",
    "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "DescribeLogDirs", "WriteTxnMarkers", "DescribeAcls",
    "CreateAcls", "DeleteAcls", "DescribeClientQuotas", "AlterClientQuotas", "DescribeUserScramCredentials",
    "AlterUserScramCredentials", "UpdateFeatures", "AlterReplicaLogDirs", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken", "DescribeDelegationToken",
)  # fmt: skip
"""APIs whose handlers are generators of slices."""
_log = logging.getLogger("logflume.broker")


class LongPolls(Protocol):
    """What waits for connections."""

    def connection_closed(self, connection_id: int) -> None:
        """Drop what waits for a connection that is gone."""
        ...

    def answer_all(self) -> None:
        """Answer everything with what there is: the broker is stopping."""
        ...


class Handlers:
    """All APIs of the broker.

    `handle` never raises: what a handler did not foresee is logged, and the connection is closed, so that a client
    never takes a broken answer for a good one.
    """

    def __init__(
        self,
        core: Core,
        *,
        coordinators: Mapping[str, Handler] | None = None,
        admission: TxnAdmission | None = None,
        long_polls: Sequence[LongPolls] = (),
    ) -> None:
        """`coordinators`: handlers of groups and transactions by API name. `long_polls`: what waits in them."""
        self.core = core
        self.complaints = Complaints(core.clock)
        self.fetch = FetchHandler(core)
        self.audit: Audit | None = None
        self._long_polls = (self.fetch, *long_polls)
        by_name: dict[str, Handler] = {
            "Produce": ProduceHandler(core, admission).produce,
            "Fetch": self.fetch.fetch,
            "ApiVersions": self._api_versions,
            "InitProducerId": self._init_producer_id,
        }
        plain: dict[str, Callable[[Core, RequestContext, Any], Any]] = {
            "ListOffsets": offsets_api.list_offsets,
            "OffsetForLeaderEpoch": offsets_api.offset_for_leader_epoch,
            "DeleteRecords": offsets_api.delete_records,
            "Metadata": metadata.metadata,
            "DescribeTopicPartitions": metadata.describe_topic_partitions,
            "DescribeCluster": metadata.describe_cluster,
            "CreateTopics": topics_api.create_topics,
            "DeleteTopics": topics_api.delete_topics,
            "CreatePartitions": topics_api.create_partitions,
            "DescribeConfigs": configs_api.describe_configs,
            "AlterConfigs": configs_api.alter_configs,
            "IncrementalAlterConfigs": configs_api.incremental_alter_configs,
            "DescribeLogDirs": cluster_api.describe_log_dirs,
            "DescribeProducers": cluster_api.describe_producers,
            "ElectLeaders": cluster_api.elect_leaders,
            "ListPartitionReassignments": cluster_api.list_partition_reassignments,
            "ListConfigResources": cluster_api.list_config_resources,
            "AlterReplicaLogDirs": one_node_api.alter_replica_log_dirs,
            "AlterPartitionReassignments": one_node_api.alter_partition_reassignments,
            "DescribeQuorum": one_node_api.describe_quorum,
            "UnregisterBroker": one_node_api.unregister_broker,
            "AddRaftVoter": one_node_api.add_raft_voter,
            "RemoveRaftVoter": one_node_api.remove_raft_voter,
            "UpdateFeatures": self._update_features,
            "CreateDelegationToken": tokens_api.create_delegation_token,
            "RenewDelegationToken": tokens_api.renew_delegation_token,
            "ExpireDelegationToken": tokens_api.expire_delegation_token,
            "DescribeDelegationToken": tokens_api.describe_delegation_token,
            "GetTelemetrySubscriptions": telemetry_api.get_telemetry_subscriptions,
            "PushTelemetry": telemetry_api.push_telemetry,
            "SaslHandshake": sasl_api.sasl_handshake,
            "SaslAuthenticate": sasl_api.sasl_authenticate,
            "DescribeUserScramCredentials": scram_api.describe_user_scram_credentials,
            "AlterUserScramCredentials": scram_api.alter_user_scram_credentials,
            "DescribeClientQuotas": quotas_api.describe_client_quotas,
            "AlterClientQuotas": quotas_api.alter_client_quotas,
            "DescribeAcls": acls_api.describe_acls,
            "CreateAcls": acls_api.create_acls,
            "DeleteAcls": acls_api.delete_acls,
        }
        by_name |= {name: partial(function, core) for name, function in plain.items()}
        self._init_transactional = (coordinators or {}).get("InitProducerId")
        by_name |= {name: handler for name, handler in (coordinators or {}).items() if name != "InitProducerId"}
        if heartbeat := by_name.get("ConsumerGroupHeartbeat"):
            by_name["ConsumerGroupHeartbeat"] = judged(heartbeat, lambda: core.cluster.topics, core.offload)
        by_name |= {name: in_slices(by_name[name], split) for name, split in SPLITS.items() if name in by_name}
        names = tables.api_names()
        self._by_key: dict[int, Handler] = {names[name]: handler for name, handler in by_name.items()}
        self._handled = frozenset(
            (key, version)
            for key in self._by_key
            for version in range(tables.api(key).versions.first, tables.api(key).versions.last + 1)
        )
        self._sliced = frozenset(names[name] for name in (*SPLITS, *GENERATORS))
        self._cluster_rights = cluster_gate.rights_by_key()
        self._apply_features()

    def max_elements(self, api_key: int) -> int:
        """Return how many elements the arrays of a request may have: enough to name every partition twice, more if in slices."""
        if api_key in self._sliced:
            return MAX_ELEMENTS
        return min(MAX_ELEMENTS, max(MAX_WHOLE_ELEMENTS, 2 * self.core.config.number("logflume.max.partitions")))

    def is_handled(self, api_key: int, version: int) -> bool:
        return (api_key, version) in self._handled

    def handle(self, context: RequestContext, request: MessageBase) -> Any:
        """Return a response message, a Reply, NO_RESPONSE or CLOSE_CONNECTION."""
        try:
            if self.core.authorizer is not None:
                audit = None if self.audit is None or self.audit.is_listing(context.api_key, request) else self.audit
                rights = self.core.authorizer.rights(context.principal, context.host)
                context = context.with_rights(rights, audit)
                needed = self._cluster_rights.get(context.api_key)
                if needed is not None and not cluster_gate.is_let_in(context, needed):
                    return cluster_gate.refuse(context.api_key, request)
            if context.api_key in self._disabled:
                return refuse_disabled(context.api_key, request)
            outcome = self._by_key[context.api_key](context, request)
            if type(outcome) is GeneratorType:
                outcome = self.core.slices.run(outcome)
            if self.audit is not None and self.audit.is_change(context.api_key):
                as_reply(outcome).then(partial(self.audit.changed, context, request))
            return outcome
        except LogflumeError as error:
            text = "API key %d from %s failed: %s"
            self.complaints.say(_log, logging.ERROR, context.host, text, context.api_key, context.host, error)
        except Exception:  # the boundary: one request must not take the broker down  # noqa: BLE001
            text = "API key %d from %s failed"
            self.complaints.say(_log, logging.ERROR, context.host, text, context.api_key, context.host, exc_info=True)
        return CLOSE_CONNECTION

    def connection_closed(self, connection_id: int) -> None:
        """Drop what waits for a connection that is gone."""
        self.core.telemetry.connection_closed(connection_id)
        for long_polls in self._long_polls:
            long_polls.connection_closed(connection_id)

    def answer_all(self) -> None:
        """Answer all long polls with what there is: the broker is stopping."""
        for long_polls in self._long_polls:
            long_polls.answer_all()

    def _api_versions(self, context: RequestContext, request: messages.ApiVersionsRequest) -> messages.ApiVersionsResponse:
        if not telemetry_api.note_software(self.core, context, request):
            return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return self.api_versions if self.core.telemetry.is_wanted else self._quiet_api_versions

    def _update_features(self, core: Core, context: RequestContext, request: messages.UpdateFeaturesRequest) -> Steps:
        response = yield from one_node_api.update_features(core, context, request)
        self._apply_features()
        return response

    def _apply_features(self) -> None:
        self.api_versions = cluster_api.api_versions(self._by_key, self.core.features)
        # A client that is told of these asks at once, and says so in its user's log; as Kafka without a receiver of metrics.
        quiet = self._by_key.keys() - {tables.api_names()[name] for name in telemetry_api.APIS}
        self._quiet_api_versions = cluster_api.api_versions(quiet, self.core.features)
        self._disabled = self.core.features.disabled_keys

    def _init_producer_id(self, context: RequestContext, request: messages.InitProducerIdRequest) -> Any:
        handler = self._give_producer_id
        return handler(context, request) if self.core.cluster.has_producer_ids else self._after_producer_ids(context, request)

    def _after_producer_ids(self, context: RequestContext, request: messages.InitProducerIdRequest) -> Steps:
        with contextlib.suppress(StorageError):  # told by who gives the id
            yield from self.core.cluster.reserve_producer_ids()
        answer = self._give_producer_id(context, request)
        if isinstance(answer, Reply):
            if not answer.is_done:
                yield answer
            answer = answer.value
        return answer

    def _give_producer_id(self, context: RequestContext, request: messages.InitProducerIdRequest) -> Any:
        if request.transactional_id is None:
            may_write = context.rights.allows(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
            if not may_write and not context.rights.allows_some(Operation.WRITE, Resource.TOPIC):
                return messages.InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return cluster_api.init_idempotent_producer(self.core)
        if self._init_transactional is None:
            return messages.InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._init_transactional(context, request)


def require_handled(handlers: Handlers, api_name: str, version: int) -> int:
    """Return the API key of a name. Raises UnknownName, KafkaError UNSUPPORTED_VERSION."""
    api = tables.api_named(api_name)
    if not handlers.is_handled(api.key, version):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api_name} version {version} is not handled by this broker")
    return api.key
