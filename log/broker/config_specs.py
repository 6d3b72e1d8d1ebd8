"""The settings of topics and of the broker under Kafka's names: type, default, bounds, meaning. One flat table each.

Kafka's defaults ("Topic Configs", "Broker Configs" of its documentation, 4.3) unless the doc text says otherwise. Settings that
have no effect on a single broker are accepted, so that clients which set them work, and say so.
"""

from __future__ import annotations

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

from .access_config_specs import ACCESS_BROKER_SPECS
from .config_spec import I32_MAX, I64_MAX, ConfigSpec, ConfigType, bool_spec, int_spec, long_spec, text_spec
from .group_config_specs import GROUP_BROKER_SPECS, GROUP_CONFIGS

_NO_EFFECT = " Accepted; has no effect on a single broker."
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
    text_spec(
        "compression.type",
        "producer",
        "Compression on disk; producer keeps what came.",
        choices=CODECS,
        broker="compression.type",
    ),
    long_spec(
        "delete.retention.ms", DAY_MS, "How long tombstones stay in a compacted topic.", broker="log.cleaner.delete.retention.ms"
    ),
    long_spec(
        "file.delete.delay.ms",
        60_000,
        "Wait before a dropped file is removed." + _NO_EFFECT,
        broker="log.segment.delete.delay.ms",
    ),
    long_spec("flush.messages", I64_MAX, "Records between flushes." + _NO_EFFECT, low=1, broker="log.flush.interval.messages"),
    long_spec("flush.ms", I64_MAX, "Time between flushes." + _NO_EFFECT, broker="log.flush.interval.ms"),
    text_spec("follower.replication.throttled.replicas", "", "Throttled followers." + _NO_EFFECT),
    int_spec("index.interval.bytes", 4096, "Bytes between two entries of the offset index.", broker="log.index.interval.bytes"),
    text_spec("leader.replication.throttled.replicas", "", "Throttled leaders." + _NO_EFFECT),
    long_spec(
        "local.retention.bytes", -2, "Local part of tiered storage." + _NO_EFFECT, low=-2, broker="log.local.retention.bytes"
    ),
    long_spec("local.retention.ms", -2, "Local part of tiered storage." + _NO_EFFECT, low=-2, broker="log.local.retention.ms"),
    text_spec(
        "logflume.flush",
        "fsync",
        "When a record counts as durable: fsync = it is on disk, os = the operating system has it.",
        choices=("fsync", "os"),
        broker="logflume.flush",
    ),
    long_spec(
        "max.compaction.lag.ms",
        I64_MAX,
        "Longest time a record stays uncompacted.",
        low=1,
        broker="log.cleaner.max.compaction.lag.ms",
    ),
    int_spec("max.message.bytes", 1_048_588, "Largest batch.", broker="message.max.bytes"),
    long_spec(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a timestamp may be ahead.",
        broker="log.message.timestamp.after.max.ms",
    ),
    long_spec(
        "message.timestamp.before.max.ms",
        I64_MAX,
        "How far a timestamp may be behind.",
        broker="log.message.timestamp.before.max.ms",
    ),
    text_spec(
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
    long_spec(
        "min.compaction.lag.ms", 0, "Shortest time a record stays uncompacted.", broker="log.cleaner.min.compaction.lag.ms"
    ),
    int_spec(
        "min.insync.replicas", 1, "In-sync replicas that acks=all asks for." + _NO_EFFECT, low=1, broker="min.insync.replicas"
    ),
    bool_spec("preallocate", False, "Reserve segment files." + _NO_EFFECT, broker="log.preallocate"),
    bool_spec("remote.storage.enable", False, "Tiered storage." + _NO_EFFECT),
    long_spec(
        "retention.bytes", -1, "Size from which old segments are dropped, -1 for no limit.", low=-1, broker="log.retention.bytes"
    ),
    long_spec(
        "retention.ms", 7 * DAY_MS, "Age from which old segments are dropped, -1 for no limit.", low=-1, broker="log.retention.ms"
    ),
    int_spec("segment.bytes", 1024**3, "Size of a segment file.", low=14, broker="log.segment.bytes"),
    int_spec("segment.index.bytes", 10 * 1024**2, "Size of a segment's offset index.", low=4, broker="log.index.size.max.bytes"),
    long_spec("segment.jitter.ms", 0, "Random part of segment.ms." + _NO_EFFECT, broker="log.roll.jitter.ms"),
    long_spec("segment.ms", 7 * DAY_MS, "Age at which a segment is rolled.", low=1, broker="log.roll.ms"),
    bool_spec("unclean.leader.election.enable", False, "Lossy elections." + _NO_EFFECT, broker="unclean.leader.election.enable"),
)

OWN_BROKER_SPECS = (
    text_spec("advertised.listeners", "", "Addresses told to clients; default: the listeners.", fixed=True),
    bool_spec("auto.create.topics.enable", True, "Create a topic when a client asks for one that does not exist."),
    long_spec("connections.max.idle.ms", 600_000, "Close a connection on which nothing happened for so long."),
    int_spec("default.replication.factor", 1, "Replicas of a topic created without a number.", low=1, high=1),
    int_spec("fetch.max.bytes", 57_671_680, "Largest fetch response.", low=1024),
    int_spec(
        "group.initial.rebalance.delay.ms", 50, "Wait for more members before the first rebalance. Kafka's default is 3000."
    ),
    int_spec("group.max.session.timeout.ms", 1_800_000, "Longest session timeout of a group member."),
    int_spec("group.max.size", I32_MAX, "Most members of a group.", low=1),
    int_spec("group.min.session.timeout.ms", 6_000, "Shortest session timeout of a group member."),
    text_spec("listeners", "", "Addresses this broker listens on.", fixed=True),
    text_spec("log.dirs", "", "The data directory.", fixed=True),
    long_spec("log.retention.check.interval.ms", 300_000, "How often old segments are looked for.", low=1),
    int_spec("max.connections", I32_MAX, "Most connections at one time."),
    int_spec("max.incremental.fetch.session.cache.slots", 1000, "Most fetch sessions (KIP-227)."),
    int_spec("node.id", 1, "Id of this broker; kept with the data directory.", fixed=True),
    int_spec("num.partitions", 1, "Partitions of a topic created without a number.", low=1),
    int_spec("offset.metadata.max.bytes", 4096, "Longest text beside a committed offset."),
    long_spec("offsets.retention.check.interval.ms", 600_000, "How often old offsets are looked for.", low=1),
    int_spec("offsets.retention.minutes", 10_080, "How long offsets of an empty group are kept.", low=1),
    int_spec("offsets.topic.num.partitions", 8, "Partitions of __consumer_offsets. Kafka's default is 50.", low=1, fixed=True),
    int_spec("producer.id.expiration.ms", DAY_MS, "How long the state of an idle producer is kept.", low=1),
    int_spec("socket.request.max.bytes", 104_857_600, "Largest request.", low=1024),
    int_spec("transaction.max.timeout.ms", 900_000, "Longest transaction timeout that a producer may ask for.", low=1),
    int_spec(
        "transaction.state.log.num.partitions", 8, "Partitions of __transaction_state. Kafka's default is 50.", low=1, fixed=True
    ),
    int_spec("transactional.id.expiration.ms", 7 * DAY_MS, "How long an idle transactional id is kept.", low=1),
)


def _broker_twin(spec: ConfigSpec) -> ConfigSpec:
    assert spec.broker_name
    return ConfigSpec(
        spec.broker_name, spec.type, spec.default, f"Default of {spec.name}: {spec.doc}", spec.low, spec.high, spec.choices
    )


TOPIC_CONFIGS = {spec.name: spec for spec in TOPIC_SPECS}
_BROKER_SPECS = [
    *OWN_BROKER_SPECS,
    *GROUP_BROKER_SPECS,
    *ACCESS_BROKER_SPECS,
    *(_broker_twin(spec) for spec in TOPIC_SPECS if spec.broker_name),
]
BROKER_CONFIGS = {spec.name: spec for spec in sorted(_BROKER_SPECS, key=lambda spec: spec.name)}


def topic_spec(name: str) -> ConfigSpec:
    """Return a topic setting. Raises KafkaError INVALID_CONFIG with near matches."""
    return _find(TOPIC_CONFIGS, name, "topic")


def broker_spec(name: str) -> ConfigSpec:
    """Return a broker setting. Raises KafkaError INVALID_CONFIG with near matches."""
    return _find(BROKER_CONFIGS, name, "broker")


def group_spec(name: str) -> ConfigSpec:
    """Return a setting of groups. Raises KafkaError INVALID_CONFIG with near matches."""
    return _find(GROUP_CONFIGS, name, "group")


def _find(specs: dict[str, ConfigSpec], name: str, what: str) -> ConfigSpec:
    spec = specs.get(name)
    if spec is None:
        near = near_matches(name, specs)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown {what} config {name!r}{hint}")
    return spec
