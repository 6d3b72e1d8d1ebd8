"""Properties of ksqlDB that change nothing here, by their names: what is so anyway, or why there is no such thing.

A value that asks for what is so anyway is taken, so that scripts run as they are; any other is refused with the reason, since a
setting that is taken and does nothing deceives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ON, OFF = frozenset({"true"}), frozenset({"false"})
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Idle:
    """Why a property changes nothing. `so_anyway`: values, in lower case, that ask for what happens here."""

    reason: str
    so_anyway: frozenset[str] = NONE


def _all(reason: str, so_anyway: frozenset[str], names: str) -> dict[str, Idle]:
    return dict.fromkeys(names.split(), Idle(reason, so_anyway))


_EXACTLY_ONCE = "every query that is stored runs exactly once"
_WORKERS = "queries run in worker processes (logflume serve --workers), not in threads of one"
_NO_PART = "that part of ksqlDB's server is not one of this one"
_LIMITS = "a server has its own limits for statements and queries, not per session"
_JAVA = "no Java classes are loaded; functions are Python (@scalar, @aggregate, @table) and come with --functions FILE"
_RIGHTS = "rights are those of the server's users file and the cluster's ACLs"
_INTERNAL = "internal topics are known by their names and are nobody's to read or write"
_SPANS = "pull queries are answered by whoever has the rows; there are no threads to count"
_PUSH = "a push query reads its topics itself; there is no shared reader to tune"
_REGISTRY = "a schema registry's URL is all that SQL is told of it; users and TLS are in the URL or the server's settings"
_CONNECT = "connectors run in this installation, not in a Connect cluster behind a URL"
_METRICS = "metrics are on the server's own page and have no settings in SQL"
_SET_AT_START = "it is given when the server starts (logflume sql serve --help)"
_UPGRADES = "a statement's plan is kept with it, whatever the version"

IDLE: Mapping[str, Idle] = {
    **_all(
        _EXACTLY_ONCE, frozenset({"exactly_once", "exactly_once_v2"}), "processing.guarantee ksql.streams.processing.guarantee"
    ),
    **_all(
        "it is always so here",
        ON,
        "ksql.lambdas.enabled ksql.create.or.replace.enabled ksql.headers.columns.enabled ksql.insert.into.values.enabled "
        "ksql.pull.queries.enable ksql.query.pull.stream.enabled ksql.source.table.materialization.enabled ksql.suppress.enabled "
        "ksql.udfs.enabled ksql.nested.error.set.null ksql.cast.strings.preserve.nulls ksql.variable.substitution.enable "
        "ksql.json_sr.converter.deserializer.enabled ksql.query.pull.metrics.enabled ksql.query.push.v2.metrics.enabled "
        "ksql.transient.query.cleanup.service.enable",
    ),
    **_all(
        "it is never so here",
        OFF,
        "ksql.functions.substring.legacy.args ksql.runtime.feature.shared.enabled ksql.udf.enable.security.manager "
        "ksql.udf.collect.metrics ksql.queryanonymizer.logs_enabled ksql.create.topic.inherit.source.replicas.enabled "
        "ksql.client.ip_port.configuration.enabled ksql.proxy.protocol.local.mode.enabled",
    ),
    **_all(
        "a record that cannot be read or written is left out and counted; the query goes on",
        OFF,
        "ksql.fail.on.deserialization.error ksql.fail.on.production.error",
    ),
    **_all(_SET_AT_START, NONE, "ksql.service.id ksql.extension.dir ksql.schema.registry.basic.auth.user.info"),
    **_all(_JAVA, NONE, "ksql.security.extension.class ksql.resource.extension.class ksql.metrics.extension"),
    **_all(
        _RIGHTS,
        NONE,
        "ksql.access.validator.enable ksql.authorization.cache.expiry.time.secs ksql.authorization.cache.max.entries "
        "ksql.properties.overrides.allowlist ksql.properties.overrides.denylist ksql.properties.overrides.log "
        "ksql.properties.overrides.range.validation.log.enabled ksql.properties.overrides.validation.mode "
        "ksql.properties.overrides.validation.restore.enabled",
    ),
    **_all(
        _INTERNAL,
        NONE,
        "ksql.hidden.topics ksql.readonly.topics ksql.persistent.prefix ksql.transient.prefix ksql.internal.topic.replicas "
        "ksql.internal.topic.min.insync.replicas ksql.sink.window.change.log.additional.retention",
    ),
    **_all(
        _LIMITS,
        NONE,
        "ksql.query.persistent.active.limit ksql.query.pull.max.qps ksql.query.pull.max.concurrent.requests "
        "ksql.query.pull.max.hourly.bandwidth.megabytes ksql.query.push.v2.max.hourly.bandwidth.megabytes "
        "ksql.query.persistent.max.bytes.buffering.total ksql.query.transient.max.bytes.buffering.total "
        "ksql.suppress.buffer.size.bytes",
    ),
    **_all(
        _SPANS,
        NONE,
        "ksql.query.pull.thread.pool.size ksql.query.pull.router.thread.pool.size ksql.query.pull.router.queue.capacity "
        "ksql.query.pull.coordinator.queue.capacity ksql.query.pull.forwarding.timeout.ms "
        "ksql.query.pull.max.allowed.offset.lag ksql.fetch.remote.hosts.max.timeout.seconds",
    ),
    **_all(
        "answers are the same whether it is on or off",
        ON | OFF,
        "ksql.query.push.v2.enabled ksql.query.push.v2.alos.enabled ksql.query.push.v2.registry.installed "
        "ksql.query.pull.interpreter.enabled ksql.query.push.v2.interpreter.enabled ksql.query.pull.enable.standby.reads",
    ),
    **_all(
        _PUSH,
        NONE,
        "ksql.query.push.v2.catchup.consumer.msg.window ksql.query.push.v2.latest.reset.age.ms "
        "ksql.query.push.v2.max.catchup.consumers ksql.query.push.v2.new.latest.delay.ms",
    ),
    **_all(
        "a query that fails is started again after 1 to 60 seconds",
        NONE,
        "ksql.query.retry.backoff.initial.ms ksql.query.retry.backoff.max.ms ksql.query.error.max.queue.size "
        "ksql.error.classifier.regex ksql.query.status.running.threshold.seconds",
    ),
    **_all(_UPGRADES, NONE, "ksql.endpoint.migrate.query ksql.metastore.backup.location"),
    **_all(_METRICS, NONE, "ksql.internal.metric.collectors ksql.internal.metrics ksql.metrics.tags.custom"),
    **_all(
        _NO_PART,
        NONE,
        "ksql.admin.request.retry.timeout.ms ksql.internal.streams.error.collector ksql.kafka.client.additional.config.prefixes "
        "ksql.query.cleanup.shutdown.timeout.ms ksql.queryanonymizer.cluster_namespace ksql.shared.runtimes.count "
        "ksql.streams.shutdown.timeout.ms ksql.transient.query.cleanup.service.initial.delay.seconds "
        "ksql.transient.query.cleanup.service.period.seconds ksql.websocket.connection.max.timeout.ms ksql.deployment.type",
    ),
    **_all(_WORKERS, NONE, "num.stream.threads ksql.streams.num.stream.threads"),
    **_all(
        "results are put out at every task commit, which has its own pace",
        NONE,
        "commit.interval.ms ksql.streams.commit.interval.ms",
    ),
    **_all(
        "what a record means is said by the statement: WITH (TIMESTAMP = ...) names its time",
        NONE,
        "default.timestamp.extractor ksql.streams.default.timestamp.extractor",
    ),
    **_all(
        "closed windows are put out as soon as stream time says so",
        frozenset({"0"}),
        "ksql.streams.__emit.interval.ms.kstreams.windowed.aggregation__ __emit.interval.ms.kstreams.windowed.aggregation__",
    ),
}
"""By name; properties that start with one of `PREFIXES` are meant too."""

PREFIXES: Mapping[str, Idle] = {
    "ksql.connect.": Idle(_CONNECT),
    "ksql.schema.registry.": Idle(_REGISTRY),
    "ksql.functions.": Idle(_JAVA),
    "ksql.streams.": Idle("queries run on logflume's own runtime, which does not have the settings of Kafka Streams"),
}


def idle(name: str) -> Idle | None:
    """Return why a property changes nothing here; None: it is none of ksqlDB's."""
    found = IDLE.get(name)
    return found or next((each for prefix, each in PREFIXES.items() if name.startswith(prefix)), None)
