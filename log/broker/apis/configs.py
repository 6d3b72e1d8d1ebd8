"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, groups and the broker, with their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.core import Core
from logflume.log.broker.replies import refuse
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.security.internal_topics import require_may_change
from logflume.log.broker.settings import loggers
from logflume.log.broker.settings.lookup import ConfigSource, ConfigValue, check_changeable
from logflume.log.broker.settings.spec import ConfigSpec, ConfigType
from logflume.log.broker.settings.table import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    broker_spec,
    group_spec,
    topic_spec,
)
from logflume.log.broker.state.metadata import Topic
from logflume.log.broker.telemetry.subscriptions import metrics_spec
from logflume.log.broker.topic_rules import check_topic_name
from logflume.log.broker.turns.slices import Steps
from logflume.log.errors import LogflumeError
from logflume.log.protocol import ErrorCode, KafkaError, messages

Asked = messages.AlterConfigsRequest.AlterConfigsResource | messages.IncrementalAlterConfigsRequest.AlterConfigsResource
"""A resource, and what its settings shall be."""
Setting = messages.AlterConfigsRequest.AlterableConfig | messages.IncrementalAlterConfigsRequest.AlterableConfig
Answer = TypeVar(
    "Answer",
    messages.AlterConfigsResponse.AlterConfigsResourceResponse,
    messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
MAX_DESCRIBED = 100_000
"""Settings in one answer."""


def describe_configs(core: Core, context: RequestContext, request: messages.DescribeConfigsRequest) -> Steps:
    """List settings with value, source, type and what they were looked up in."""
    response = messages.DescribeConfigsResponse()
    left = MAX_DESCRIBED
    for number, asked in enumerate(request.resources):
        if number or asked.resource_type == BROKER:  # a slice each: a broker has hundreds of settings
            yield None
        answer = response.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name, error_message=None
        )
        response.results.append(answer)
        try:
            _require(context, Operation.DESCRIBE_CONFIGS, asked)
            found = _values(core, asked)
        except LogflumeError as error:
            refuse(answer, error)
            continue
        wanted = asked.configuration_keys
        left -= len(found)
        if left < 0:
            refuse(answer, _too_much())
            continue
        answer.configs = [_describe(value, request) for value in found if wanted is None or value.spec.name in wanted]
    return response


def _too_much() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, f"one answer has at most {MAX_DESCRIBED} settings; ask for fewer resources at a time"
    )


def _values(core: Core, asked: messages.DescribeConfigsRequest.DescribeConfigsResource) -> list[ConfigValue]:
    if asked.resource_type == TOPIC:
        topic = _topic(core, asked.resource_name)
        return [core.config.lookup_topic(name, topic.configs) for name in TOPIC_CONFIGS]
    if asked.resource_type == BROKER:
        _check_broker(core, asked.resource_name)
        if asked.resource_name == "":
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER
            return [
                ConfigValue(BROKER_CONFIGS[name], value, source, ((name, value, source),))
                for name, value in core.cluster.cluster_configs.items()
            ]
        return [core.config.lookup(spec) for spec in BROKER_CONFIGS.values()]
    if asked.resource_type == GROUP:
        if not asked.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "expected the id of a group, found an empty name")
        own = core.group_configs(asked.resource_name)
        return [core.config.lookup_group(name, own) for name in GROUP_CONFIGS]
    if asked.resource_type == CLIENT_METRICS:
        if not asked.resource_name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "expected the name of a client metrics subscription, found an empty one")
        own = core.client_metrics.configs.get(asked.resource_name, {})
        return [core.config.lookup_client_metrics(name, own) for name in CLIENT_METRICS_CONFIGS]
    if asked.resource_type == BROKER_LOGGER:
        _check_broker(core, asked.resource_name)
        return loggers.levels()
    expected = "expected 2 (topic), 4 (broker), 8 (broker logger), 16 (client metrics) or 32 (group)"
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"configs of resource type {asked.resource_type}: {expected}")


def _describe(
    value: ConfigValue, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse.DescribeConfigsResourceResult:
    spec, response = value.spec, messages.DescribeConfigsResponse
    synonym = response.DescribeConfigsSynonym
    return response.DescribeConfigsResourceResult(
        name=spec.name,
        value=None if spec.is_sensitive else value.value,
        is_sensitive=spec.is_sensitive,
        read_only=spec.is_read_only,
        config_source=value.source,
        synonyms=[synonym(name=n, value=None if spec.is_sensitive else v, source=s) for n, v, s in value.synonyms]
        if request.include_synonyms
        else [],
        config_type=spec.type,
        documentation=spec.doc if request.include_documentation else None,
    )


def alter_configs(core: Core, context: RequestContext, request: messages.AlterConfigsRequest) -> Steps:
    """Replace all settings of a resource (the older call: what is not named goes back to its default)."""
    response = messages.AlterConfigsResponse()

    def replace(asked: Asked, specs: Callable[[str], ConfigSpec], old: Mapping[str, str]) -> dict[str, str]:
        return {config.name: _given(config) for config in asked.configs}

    yield from _alter_all(core, context, request, response.AlterConfigsResourceResponse, response.responses, replace)
    return response


def incremental_alter_configs(core: Core, context: RequestContext, request: messages.IncrementalAlterConfigsRequest) -> Steps:
    """Set, delete, append to or subtract from single settings (KIP-339)."""
    response = messages.IncrementalAlterConfigsResponse()
    yield from _alter_all(core, context, request, response.AlterConfigsResourceResponse, response.responses, _changed)
    return response


def _require(
    context: RequestContext, operation: Operation, asked: Asked | messages.DescribeConfigsRequest.DescribeConfigsResource
) -> None:
    """Raise KafkaError unless who asks may see or alter these configs: those of a topic, a group, or the cluster for the rest."""
    if asked.resource_type == TOPIC:
        context.require(operation, Resource.TOPIC, asked.resource_name)
    elif asked.resource_type == GROUP:
        context.require(operation, Resource.GROUP, asked.resource_name)
    else:
        context.require(operation, Resource.CLUSTER, CLUSTER_NAME)


def _alter_all(
    core: Core,
    context: RequestContext,
    request: messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest,
    answer_class: type[Answer],
    answers: list[Answer],
    change: Callable[..., dict[str, str]],
) -> Steps:
    seen = set()
    resources: Sequence[Asked] = request.resources
    for number, asked in enumerate(resources):
        if number:  # a slice each: a broker has hundreds of settings
            yield None
        answer = answer_class(resource_type=asked.resource_type, resource_name=asked.resource_name, error_message=None)
        answers.append(answer)
        try:
            if (asked.resource_type, asked.resource_name) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{asked.resource_name!r} is named twice in one request")
            seen.add((asked.resource_type, asked.resource_name))
            _require(context, Operation.ALTER_CONFIGS, asked)
            yield from core.cluster.in_turn("configs", _alter(core, context, asked, change, is_dry=request.validate_only))
        except LogflumeError as error:
            refuse(answer, error)


def _alter(core: Core, context: RequestContext, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool) -> Steps:
    """Alter the configs of a resource. Raises LogflumeError."""
    if asked.resource_type == TOPIC:
        yield from _alter_topic(core, context, asked, change, is_dry=is_dry)
    elif asked.resource_type == BROKER:
        yield from _alter_broker(core, asked, change, is_dry=is_dry)
    elif asked.resource_type == GROUP:
        yield from _alter_group(core, asked, change, is_dry=is_dry)
    elif asked.resource_type == CLIENT_METRICS:
        yield from _alter_client_metrics(core, asked, change, is_dry=is_dry)
    elif asked.resource_type == BROKER_LOGGER and change is _changed:
        _alter_loggers(core, asked, change, is_dry=is_dry)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {asked.resource_type} has no configs to alter")


def _alter_topic(
    core: Core, context: RequestContext, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool
) -> Steps:
    topic = _topic(core, asked.resource_name)
    require_may_change(context, topic.name)
    configs = change(asked, topic_spec, topic.configs)
    core.topic_rules.check_configs(configs)
    if not is_dry and configs != topic.configs:
        yield from core.set_topic_configs(topic, configs)


def _alter_loggers(core: Core, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool) -> None:
    _check_broker(core, asked.resource_name)
    wanted = change(asked, loggers.logger_spec, loggers.own_levels())
    for name, level in wanted.items():
        loggers.logger_spec(name).check(level)
    if not is_dry:
        loggers.set_levels(wanted)


def _alter_broker(core: Core, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool) -> Steps:
    """Change the dynamic configs of the broker, or with an empty name those of the cluster."""
    _check_broker(core, asked.resource_name)
    is_default = asked.resource_name == ""
    old = core.cluster.cluster_configs if is_default else core.cluster.broker_configs
    configs = change(asked, broker_spec, old)
    for name, value in configs.items():
        spec = broker_spec(name)
        if old.get(name) != value:
            check_changeable(spec, is_default=is_default)
    core.check_broker_configs(configs, is_default=is_default)
    if is_dry or configs == old:
        return
    yield from (core.set_cluster_configs if is_default else core.set_broker_configs)(configs)


def _alter_group(core: Core, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool) -> Steps:
    old = core.group_configs(asked.resource_name)
    configs = change(asked, group_spec, old)
    core.check_group_configs(asked.resource_name, configs)
    if not is_dry and configs != old:
        yield from core.set_group_configs(asked.resource_name, configs)


def _alter_client_metrics(core: Core, asked: Asked, change: Callable[..., dict[str, str]], *, is_dry: bool) -> Steps:
    """Change a subscription; one without settings of its own is gone."""
    old = core.client_metrics.configs.get(asked.resource_name, {})
    configs = change(asked, metrics_spec, old)
    core.client_metrics.check(asked.resource_name, configs)
    if not is_dry and configs != old:
        yield from core.client_metrics.set_configs(asked.resource_name, configs)


def _changed(
    asked: messages.IncrementalAlterConfigsRequest.AlterConfigsResource,
    specs: Callable[[str], ConfigSpec],
    old: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings after the operations of an incremental request."""
    new = dict(old)
    for config in asked.configs:
        spec = specs(config.name)
        if config.config_operation == DELETE:
            new.pop(config.name, None)
        elif config.config_operation == SET:
            new[config.name] = _given(config)
        elif config.config_operation in (APPEND, SUBTRACT):
            if spec.type is not ConfigType.LIST:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list: it can only be set or deleted")
            now = [part for part in (new.get(config.name, spec.default) or "").split(",") if part]
            given = [part.strip() for part in _given(config).split(",")]
            rest = [part for part in now if part not in given]
            new[config.name] = ",".join(rest if config.config_operation == SUBTRACT else [*rest, *given])
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"config operation {config.config_operation}: expected 0 to 3")
    return new


def _given(config: Setting) -> str:
    if config.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"config {config.name} has no value")
    return config.value


def _topic(core: Core, name: str) -> Topic:
    check_topic_name(name)
    topic = core.cluster.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=name)
    return topic


def _check_broker(core: Core, name: str) -> None:
    if name not in ("", str(core.node_id)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"expected broker {core.node_id}, the only one, found {name!r}")
