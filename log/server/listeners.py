"""Where a broker listens and what it tells its clients: `listeners`, `advertised.listeners` and what belongs to them (KIP-103).

Pure: reads settings, opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logflume.log.broker.security.listener_settings import PLAINTEXT, PROTOCOLS, SSL, ListenerSettings
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput

from .addresses import UNIX_PREFIX, WILDCARDS, Address, parse_address

MAX_LISTENERS = 64
PAGES_LISTENER = "HTTP"
"""The TLS of /metrics, /healthz and /readyz is set as that of a listener of this name, else as the broker's."""
_SETTINGS = (
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "inter.broker.listener.name",
)


@dataclass(frozen=True, slots=True)
class ListenerPlan:
    """One listener: its name, where it binds, the address told to its clients (None: the one that was bound), its protocol."""

    name: str
    address: Address
    advertised: Address | None = None
    protocol: str = PLAINTEXT


def named_addresses(addresses: Sequence[Address]) -> str:
    """Return addresses as the text of `listeners`: the first is PLAINTEXT, then PLAINTEXT2 and so on.

    >>> named_addresses([Address("127.0.0.1", 9092)])
    'PLAINTEXT://127.0.0.1:9092'
    """
    return ",".join(f"{PLAINTEXT}{index + 1 if index else ''}://{address}" for index, address in enumerate(addresses))


def plan_listeners(config: BrokerConfig, *, advertised: Address | None = None) -> list[ListenerPlan]:
    """Return what to listen on, as the settings say.

    `NAME://HOST:PORT`, `HOST:PORT` (named PLAINTEXT) and `NAME://unix:PATH` are understood; an empty host is every interface.
    Listeners that `controller.listener.names` names are left out: this broker is its own controller.

    Args:
        advertised: told to clients of every listener, in place of `advertised.listeners`.

    Raises:
        InvalidInput: a malformed address, a name or port used twice, an advertised listener that is not one, a listener
            without a security protocol.
    """
    protocols = _protocols(config)
    bound = _parse(config.parts("listeners"), "listeners")
    told = _parse(config.parts("advertised.listeners"), "advertised.listeners")
    controllers = set(config.parts("controller.listener.names"))
    plans = []
    for name, address in bound.items():
        if name in controllers:
            continue
        plans.append(ListenerPlan(name, address, advertised or told.get(name), _protocol_of(name, protocols)))
    _check_ports(plans)
    for name, address in told.items():
        if name not in bound or name in controllers:
            raise InvalidInput(
                f"advertised.listeners names {name}, which is not one of the listeners: {', '.join(bound) or 'none'}"
            )
        if address.host in WILDCARDS:
            raise InvalidInput(
                f"advertised.listeners {name}://{address}: clients need a host that they can reach, not every interface"
            )
    between_brokers = config.text("inter.broker.listener.name")
    if between_brokers and between_brokers not in bound:
        raise InvalidInput(f"inter.broker.listener.name {between_brokers} is not one of the listeners: {', '.join(bound)}")
    return plans


def refuse_open_listeners(plans: Sequence[ListenerPlan], config: BrokerConfig) -> None:
    """Raise InvalidInput if somebody on another machine could use a listener without saying who he is."""
    for plan in plans:
        settings = ListenerSettings(config, plan.name, plan.protocol)
        has_certificates = plan.protocol == SSL and settings.text("ssl.client.auth") == "required"
        if not plan.address.is_loopback and not settings.has_sasl and not has_certificates:
            host = f" --host {plan.address.host}" if plan.address.host not in WILDCARDS else " --host HOST"
            raise InvalidInput(
                f"listener {plan.name} ({plan.address}) has no authentication: whoever reaches it could do everything. "
                f"`logflume secure init{host}` makes what it needs; or listen on 127.0.0.1 only, or say --insecure"
            )
    _refuse_open_pages(config)


def _refuse_open_pages(config: BrokerConfig) -> None:
    """Raise InvalidInput if somebody on another machine could read metrics without saying who he is."""
    text = config.text("logflume.http.listener")
    if not text:
        return
    address = parse_address(text)
    if not address.is_loopback and not has_page_key(ListenerSettings(config, PAGES_LISTENER, SSL), address):
        raise InvalidInput(
            f"logflume.http.listener ({address}) is no loopback address: metrics go to users only, over TLS, and there is no "
            "certificate. `logflume secure init` makes one (ssl.keystore.location); or use 127.0.0.1, or say --insecure"
        )


def has_page_key(settings: ListenerSettings, address: Address) -> bool:
    """Whether there is a key for the pages at an address."""
    names = ("ssl.keystore.location", "ssl.keystore.key")
    read = settings.own_text if address.is_loopback else settings.text
    return any(read(name) for name in names)


def client_address(configs: Mapping[str, str]) -> Address | None:
    """Return where a client on this machine reaches the first of `listeners`, None without one. Raises InvalidInput."""
    plans = plan_listeners(BrokerConfig({name: configs[name] for name in _SETTINGS if name in configs}))
    if not plans or not configs.get("listeners"):
        return None
    host, port = plans[0].address
    return Address("127.0.0.1" if host in WILDCARDS else host, port)


def _protocols(config: BrokerConfig) -> Mapping[str, str]:
    found = {}
    for part in config.parts("listener.security.protocol.map"):
        name, colon, protocol = part.partition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise InvalidInput(f"listener.security.protocol.map expects NAME:PROTOCOL of {', '.join(PROTOCOLS)}, found {part!r}")
        found[name.strip()] = protocol.upper()
    return found


def _protocol_of(name: str, protocols: Mapping[str, str]) -> str:
    is_numbered = name.startswith(PLAINTEXT) and name.removeprefix(PLAINTEXT).isdecimal()
    protocol = protocols.get(name, PLAINTEXT if is_numbered else None)
    if protocol is None:
        raise InvalidInput(f"listener {name} has no security protocol; add {name}:PLAINTEXT to listener.security.protocol.map")
    return protocol


def _parse(texts: Sequence[str], setting: str) -> dict[str, Address]:
    if len(texts) > MAX_LISTENERS:
        raise InvalidInput(f"{setting}: expected at most {MAX_LISTENERS} listeners, found {len(texts)}")
    found: dict[str, Address] = {}
    for text in texts:
        name, colon, address = text.partition("://")
        if not colon or text.startswith(UNIX_PREFIX):
            name, address = PLAINTEXT, text
        if not name:
            raise InvalidInput(f"{setting} expects NAME://HOST:PORT, found {text!r}")
        if name in found:
            raise InvalidInput(f"{setting} has two listeners named {name}; give each a name of its own")
        found[name] = parse_address(address)
    return found


def _check_ports(plans: Sequence[ListenerPlan]) -> None:
    seen: dict[int, str] = {}
    for plan in plans:
        port = plan.address.port
        if port and port in seen and plan.address.unix_path is None:
            other = next(each for each in plans if each.name == seen[port])
            if other.address.host == plan.address.host or {other.address.host, plan.address.host} & set(WILDCARDS):
                raise InvalidInput(f"listeners {other.name} and {plan.name} both want port {port}; choose another")
        seen[port] = plan.name
