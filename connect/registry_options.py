"""What the converters with a schema registry are told, under the names of Confluent's converters behind `key.converter.` and
`value.converter.`: as data, and as a format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import quote, urlsplit, urlunsplit

from logflume.log import InvalidInput
from logflume.log.schemas import FORMATS, FormatSpec, default_registry, format_of, of_topic

from .config import Config
from .errors import Problem
from .spec import Option, OptionType

SIDES = ("key", "value")
NAMINGS: Mapping[str, str] = {
    "TopicNameStrategy": "TOPIC", "RecordNameStrategy": "RECORD", "TopicRecordNameStrategy": "TOPIC_RECORD",
}  # fmt: skip
_STRATEGIES = "io.confluent.kafka.serializers.subject."
PREFIX_IDS, HEADER_IDS = "PrefixSchemaIdSerializer", "HeaderSchemaIdSerializer"
_SERIALIZERS = "io.confluent.kafka.serializers.schema.id."


def registry_options() -> tuple[Option, ...]:
    """Return the options of both sides."""
    return tuple(option for side in SIDES for option in _of_side(side))


def _of_side(side: str) -> tuple[Option, ...]:
    def flag(name: str, default: bool, doc: str) -> Option:
        return Option(name=f"{side}.converter.{name}", type=OptionType.BOOLEAN, default=default, doc=doc)

    def text(name: str, default: str, doc: str, allowed: tuple[str, ...] = ()) -> Option:
        return Option(name=f"{side}.converter.{name}", type=OptionType.STRING, default=default, doc=doc, allowed=allowed)

    strategies = tuple(prefix + name for name in NAMINGS for prefix in ("", _STRATEGIES))
    serializers = tuple(prefix + name for name in (PREFIX_IDS, HEADER_IDS) for prefix in ("", _SERIALIZERS))
    return (
        text("schema.registry.url", "", f"The registry of {side}s, where it is another one than `schema.registry.url`."),
        Option(
            name=f"{side}.converter.basic.auth.user.info",
            type=OptionType.PASSWORD,
            default=None,
            doc="USER:PASSWORD for the registry; else what its address says, else $LOGFLUME_REGISTRY_AUTH.",
        ),
        flag("auto.register.schemas", True, "Whether the schema of what is written is registered; else it must be there."),
        flag("use.latest.version", False, "Write with the newest schema of the subject; nothing is registered."),
        Option(
            name=f"{side}.converter.use.schema.id",
            type=OptionType.INTEGER,
            default=0,
            minimum=0,
            doc="Write with the schema of this id; 0: with one made from the columns.",
        ),
        flag("normalize.schemas", False, "Register and look up schemas in the registry's normal form."),
        flag("id.compatibility.strict", True, "Refuse a schema of use.schema.id that does not fit the columns."),
        flag("latest.compatibility.strict", True, "Refuse a newest schema that does not fit the columns."),
        text(
            f"{side}.subject.name.strategy",
            "TopicNameStrategy",
            "How subjects are called: by topic, by record (schema.full.name), or by both.",
            strategies,
        ),
        text("schema.full.name", "", f"The name of the {side}'s record or message, namespace included."),
        text(
            f"{side}.schema.id.serializer",
            PREFIX_IDS,
            "Where schema ids are written: before the payload, or (values only) as GUIDs into headers. Both are read.",
            serializers,
        ),
    )


def registry_problems(config: Config) -> Iterable[Problem]:
    """Yield what is wrong with these options taken together."""
    for side in SIDES:
        name = config.text(f"{side}.converter").upper()
        if name in FORMATS and format_of(name).schemas is not None:
            try:
                registered_format(FormatSpec(name), config, side, "topic")
            except InvalidInput as error:
                yield Problem(f"{side}.converter", str(error))


def registered_format(spec: FormatSpec, config: Config, side: str, topic: str) -> FormatSpec:
    """Return a format with schemas as the config has it for a side of a topic.

    Raises:
        InvalidInput, UnknownName: options that do not go together.
    """
    head = f"{side}.converter."
    uses_latest, schema_id = config.flag(head + "use.latest.version"), config.integer(head + "use.schema.id")
    if uses_latest and schema_id:
        raise InvalidInput(f"{head}use.latest.version and {head}use.schema.id exclude each other")
    strictness = "id.compatibility.strict" if schema_id else "latest.compatibility.strict"
    told = replace(
        spec,
        naming=NAMINGS[config.text(f"{head}{side}.subject.name.strategy").removeprefix(_STRATEGIES)],
        full_name=config.text(head + "schema.full.name"),
        schema_id=schema_id,
        uses_latest=uses_latest,
        registers=config.flag(head + "auto.register.schemas"),
        normalizes=config.flag(head + "normalize.schemas"),
        is_strict=config.flag(head + strictness),
        has_ids_in_headers=config.text(f"{head}{side}.schema.id.serializer").removeprefix(_SERIALIZERS) == HEADER_IDS,
    )
    return of_topic(told, topic, side, _address(config, head))


def _address(config: Config, head: str) -> str:
    """Return where the registry is, with the password that the config has for it."""
    address = config.text(head + "schema.registry.url") or config.text("schema.registry.url") or default_registry()
    secret = config.secret(head + "basic.auth.user.info")
    if not secret:
        return address
    user, colon, password = secret.partition(":")
    if not colon:
        raise InvalidInput(f"{head}basic.auth.user.info is USER:PASSWORD; it is something else")
    parts = urlsplit(address)
    place = f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=place))
