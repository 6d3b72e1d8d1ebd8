"""GetTelemetrySubscriptions and PushTelemetry (KIP-714), and what ApiVersions tells of a client's software (KIP-511)."""

from __future__ import annotations

import re

from logflume.log.broker.core import Core
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.telemetry.clients import ACCEPTED_CODECS
from logflume.log.broker.telemetry.subscriptions import Client
from logflume.log.protocol import KafkaError, messages

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]{0,253}[a-zA-Z0-9])?")
FIRST_SOFTWARE_VERSION = 3
APIS = ("GetTelemetrySubscriptions", "PushTelemetry")


def note_software(core: Core, context: RequestContext, request: messages.ApiVersionsRequest) -> bool:
    """Note the name and version of a client's software; return whether they are legal (KIP-511)."""
    if context.api_version < FIRST_SOFTWARE_VERSION:
        return True
    name, version = request.client_software_name, request.client_software_version
    if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
        return False
    core.telemetry.set_software(context.connection_id, name, version)
    return True


def get_telemetry_subscriptions(
    core: Core, context: RequestContext, request: messages.GetTelemetrySubscriptionsRequest
) -> messages.GetTelemetrySubscriptionsResponse:
    """Tell a client what metrics are wanted of it."""
    response = messages.GetTelemetrySubscriptionsResponse()
    try:
        wanted = core.telemetry.ask(request.client_instance_id, _client(core, context), context.connection_id)
    except KafkaError as error:
        response.error_code = error.number
        return response
    response.client_instance_id, response.subscription_id = wanted.client_instance_id, wanted.subscription_id
    response.accepted_compression_types = list(ACCEPTED_CODECS)
    response.push_interval_ms, response.requested_metrics = wanted.interval_ms, list(wanted.metrics)
    response.telemetry_max_bytes, response.delta_temporality = core.config.number("telemetry.max.bytes"), True
    return response


def push_telemetry(core: Core, context: RequestContext, request: messages.PushTelemetryRequest) -> messages.PushTelemetryResponse:
    """Take the metrics that a client pushes."""
    response = messages.PushTelemetryResponse()
    try:
        core.telemetry.push(
            request.client_instance_id,
            _client(core, context),
            context.connection_id,
            subscription_id=request.subscription_id,
            is_terminating=request.terminating,
            codec=request.compression_type,
            size_bytes=len(request.metrics),
        )
    except KafkaError as error:
        response.error_code = error.number
    return response


def _client(core: Core, context: RequestContext) -> Client:
    name, version = core.telemetry.software_of(context.connection_id)
    return Client("", context.client_id, name, version, context.host, str(context.port))
