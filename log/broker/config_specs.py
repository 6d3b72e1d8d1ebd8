"""The settings of topics and of the broker under Kafka's names: type, default, bounds, meaning. One flat table each.

Kafka's defaults ("Topic Configs", "Broker Configs" of its documentation, 4.3) unless the doc text says otherwise. Settings that
have no effect on a single broker are accepted, so that clients which set them work, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1
_NO_EFFECT = " Accepted; has no effect on a single broker."


class ConfigType(IntEnum):
    """Types as DescribeConfigs reports them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One setting. `broker_name`: the broker's setting that is the default of this topic setting."""

    name: str
    type: ConfigType
    default: str
    doc: str
    low: float = 0
    high: float = I64_MAX
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    is_read_only: bool = False

    def check(self, value: str) -> None:
        """Raise KafkaError INVALID_CONFIG if the value is not one of this setting."""
        problem = self._problem(value)
        if problem:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"invalid value {value!r} for {self.name}: {problem}")

    def _problem(self, value: str) -> str | None:
        if self.type is ConfigType.BOOLEAN:
            return None if value in ("true", "false") else "expected true or false"
        if self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
            try:
                number = float(value) if self.type is ConfigType.DOUBLE else int(value)
            except ValueError:
                return "expected a number"
            return None if self.low <= number <= self.high else f"expected {self.low} to {self.high}"
        if self.choices:
            given = [value] if self.type is not ConfigType.LIST else [part.strip() for part in value.split(",") if part]
            unknown = [part for part in given if part not in self.choices]
            if unknown:
                near = near_matches(unknown[0], self.choices)
                return f"expected {' or '.join(self.choices)}" + (f"; did you mean {near[0]!r}?" if near else "")
        return None


def _long(name: str, default: int, doc: str, *, low: int = 0, high: int = I64_MAX, broker: str | None = None) -> ConfigSpec:
    return ConfigSpec(name, ConfigType.LONG, str(default), doc, low, high, broker_name=broker)


def _int(
    name: str, default: int, doc: str, *, low: int = 0, high: int = I32_MAX, broker: str | None = None, fixed: bool = False
) -> ConfigSpec:
    return ConfigSpec(name, ConfigType.INT, str(default), doc, low, high, broker_name=broker, is_read_only=fixed)


def _bool(name: str, default: bool, doc: str, *, broker: str | None = None) -> ConfigSpec:
    return ConfigSpec(name, ConfigType.BOOLEAN, str(default).lower(), doc, broker_name=broker)


def _text(
    name: str, default: str, doc: str, *, choices: tuple[str, ...] = (), broker: str | None = None, fixed: bool = False
) -> ConfigSpec:
    return ConfigSpec(name, ConfigType.STRING, default, doc, choices=choices, broker_name=broker, is_read_only=fixed)


DAY_MS = 86_400_000
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SPECS = (
    ConfigSpec(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old data: delete drops whole segments, compact keeps the latest record of each key.",
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    ),
    _text(
        "compression.type",
        "producer",
        "Compression on disk; producer keeps what came.",
        choices=CODECS,
        broker="compression.type",
    ),
    _long(
        "delete.retention.ms", DAY_MS, "How long tombstones stay in a compacted topic.", broker="log.cleaner.delete.retention.ms"
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "Wait before a dropped file is removed." + _NO_EFFECT,
        broker="log.segment.delete.delay.ms",
    ),
    _long("flush.messages", I64_MAX, "Records between flushes." + _NO_EFFECT, low=1, broker="log.flush.interval.messages"),
    _long("flush.ms", I64_MAX, "Time between flushes." + _NO_EFFECT, broker="log.flush.interval.ms"),
    _text("follower.replication.throttled.replicas", "", "Throttled followers." + _NO_EFFECT),
    _int("index.interval.bytes", 4096, "Bytes between two entries of the offset index.", broker="log.index.interval.bytes"),
    _text("leader.replication.throttled.replicas", "", "Throttled leaders." + _NO_EFFECT),
    _long("local.retention.bytes", -2, "Local part of tiered storage." + _NO_EFFECT, low=-2, broker="log.local.retention.bytes"),
    _long("local.retention.ms", -2, "Local part of tiered storage." + _NO_EFFECT, low=-2, broker="log.local.retention.ms"),
    _text(
        "logflume.flush",
        "fsync",
        "When a record counts as durable: fsync = it is on disk, os = the operating system has it.",
        choices=("fsync", "os"),
        broker="logflume.flush",
    ),
    _long(
        "max.compaction.lag.ms",
        I64_MAX,
        "Longest time a record stays uncompacted.",
        low=1,
        broker="log.cleaner.max.compaction.lag.ms",
    ),
    _int("max.message.bytes", 1_048_588, "Largest batch.", broker="message.max.bytes"),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a timestamp may be ahead.",
        broker="log.message.timestamp.after.max.ms",
    ),
    _long(
        "message.timestamp.before.max.ms",
        I64_MAX,
        "How far a timestamp may be behind.",
        broker="log.message.timestamp.before.max.ms",
    ),
    _text(
        "message.timestamp.type",
        "CreateTime",
        "Whose clock stamps the records: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
    ),
    ConfigSpec(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "Part of a log that must be dirty before it is compacted.",
        high=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    _long("min.compaction.lag.ms", 0, "Shortest time a record stays uncompacted.", broker="log.cleaner.min.compaction.lag.ms"),
    _int("min.insync.replicas", 1, "In-sync replicas that acks=all asks for." + _NO_EFFECT, low=1, broker="min.insync.replicas"),
    _bool("preallocate", False, "Reserve segment files." + _NO_EFFECT, broker="log.preallocate"),
    _bool("remote.storage.enable", False, "Tiered storage." + _NO_EFFECT),
    _long(
        "retention.bytes", -1, "Size from which old segments are dropped, -1 for no limit.", low=-1, broker="log.retention.bytes"
    ),
    _long(
        "retention.ms", 7 * DAY_MS, "Age from which old segments are dropped, -1 for no limit.", low=-1, broker="log.retention.ms"
    ),
    _int("segment.bytes", 1024**3, "Size of a segment file.", low=14, broker="log.segment.bytes"),
    _int("segment.index.bytes", 10 * 1024**2, "Size of a segment's offset index.", low=4, broker="log.index.size.max.bytes"),
    _long("segment.jitter.ms", 0, "Random part of segment.ms." + _NO_EFFECT, broker="log.roll.jitter.ms"),
    _long("segment.ms", 7 * DAY_MS, "Age at which a segment is rolled.", low=1, broker="log.roll.ms"),
    _bool("unclean.leader.election.enable", False, "Lossy elections." + _NO_EFFECT, broker="unclean.leader.election.enable"),
)

OWN_BROKER_SPECS = (
    _text("advertised.listeners", "", "Addresses told to clients; default: the listeners.", fixed=True),
    ConfigSpec(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        "Whether a resource about which no ACL says anything is open to everyone.",
        is_read_only=True,
    ),
    _text(
        "authorizer.class.name",
        "",
        "Who decides about access: empty for nobody (everything is allowed), StandardAuthorizer for the ACLs kept by this broker.",
        choices=("", STANDARD_AUTHORIZER),
        fixed=True,
    ),
    _bool("auto.create.topics.enable", True, "Create a topic when a client asks for one that does not exist."),
    _long("connections.max.idle.ms", 600_000, "Close a connection on which nothing happened for so long."),
    _int("default.replication.factor", 1, "Replicas of a topic created without a number.", low=1, high=1),
    _int("fetch.max.bytes", 57_671_680, "Largest fetch response.", low=1024),
    _int("group.consumer.heartbeat.interval.ms", 5_000, "How often members of the consumer protocol report.", low=1),
    _int("group.consumer.max.size", I32_MAX, "Most members of a group of the consumer protocol.", low=1),
    _int("group.consumer.session.timeout.ms", 45_000, "How long a member of the consumer protocol may be silent.", low=1),
    _int("group.initial.rebalance.delay.ms", 50, "Wait for more members before the first rebalance. Kafka's default is 3000."),
    _int("group.max.session.timeout.ms", 1_800_000, "Longest session timeout of a group member."),
    _int("group.max.size", I32_MAX, "Most members of a group.", low=1),
    _int("group.min.session.timeout.ms", 6_000, "Shortest session timeout of a group member."),
    _text("listeners", "", "Addresses this broker listens on.", fixed=True),
    _text("log.dirs", "", "The data directory.", fixed=True),
    _long("log.retention.check.interval.ms", 300_000, "How often old segments are looked for.", low=1),
    _int("max.connections", I32_MAX, "Most connections at one time."),
    _int("max.incremental.fetch.session.cache.slots", 1000, "Most fetch sessions (KIP-227)."),
    _int("node.id", 1, "Id of this broker; kept with the data directory.", fixed=True),
    _int("num.partitions", 1, "Partitions of a topic created without a number.", low=1),
    _int("offset.metadata.max.bytes", 4096, "Longest text beside a committed offset."),
    _int("offsets.retention.minutes", 10_080, "How long offsets of an empty group are kept.", low=1),
    _int("offsets.topic.num.partitions", 8, "Partitions of __consumer_offsets. Kafka's default is 50.", low=1, fixed=True),
    _int("producer.id.expiration.ms", DAY_MS, "How long the state of an idle producer is kept.", low=1),
    _int("socket.request.max.bytes", 104_857_600, "Largest request.", low=1024),
    _text("super.users", "", "Principals that may do everything, as User:name, separated by semicolons.", fixed=True),
    _int("transaction.max.timeout.ms", 900_000, "Longest transaction timeout that a producer may ask for.", low=1),
    _int(
        "transaction.state.log.num.partitions", 8, "Partitions of __transaction_state. Kafka's default is 50.", low=1, fixed=True
    ),
    _int("transactional.id.expiration.ms", 7 * DAY_MS, "How long an idle transactional id is kept.", low=1),
)


def _broker_twin(spec: ConfigSpec) -> ConfigSpec:
    assert spec.broker_name
    return ConfigSpec(
        spec.broker_name, spec.type, spec.default, f"Default of {spec.name}: {spec.doc}", spec.low, spec.high, spec.choices
    )


TOPIC_CONFIGS = {spec.name: spec for spec in TOPIC_SPECS}
_BROKER_SPECS = [*OWN_BROKER_SPECS, *(_broker_twin(spec) for spec in TOPIC_SPECS if spec.broker_name)]
BROKER_CONFIGS = {spec.name: spec for spec in sorted(_BROKER_SPECS, key=lambda spec: spec.name)}


def topic_spec(name: str) -> ConfigSpec:
    """Return a topic setting. Raises KafkaError INVALID_CONFIG with near matches."""
    return _find(TOPIC_CONFIGS, name, "topic")


def broker_spec(name: str) -> ConfigSpec:
    """Return a broker setting. Raises KafkaError INVALID_CONFIG with near matches."""
    return _find(BROKER_CONFIGS, name, "broker")


def _find(specs: dict[str, ConfigSpec], name: str, what: str) -> ConfigSpec:
    spec = specs.get(name)
    if spec is None:
        near = near_matches(name, specs)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown {what} config {name!r}{hint}")
    return spec
