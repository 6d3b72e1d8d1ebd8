"""Settings of one listener: `listener.name.NAME.SETTING`, also with a mechanism before it, else the setting itself (KIP-103)."""

from __future__ import annotations

from logflume.log.broker.settings.lookup import BrokerConfig

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ListenerSettings:
    """What the settings say for a listener; reads them anew at each question, for some change while the broker runs."""

    __slots__ = ("_config", "name", "protocol")

    def __init__(self, config: BrokerConfig, name: str, protocol: str) -> None:
        assert protocol in PROTOCOLS
        self._config, self.name, self.protocol = config, name, protocol

    @property
    def has_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    def text(self, setting: str, *, mechanism: str = "") -> str:
        """Return a setting of this listener, "" where it is not set."""
        prefix = f"listener.name.{self.name.lower()}."
        names = [f"{prefix}{mechanism.lower()}.{setting}"] if mechanism else []
        for name in [*names, prefix + setting]:
            value = self._config.given(name)
            if value is not None:
                return value
        return self._config.text(setting)

    def own_text(self, setting: str) -> str:
        """Return a setting that was given for this listener, "" where only the broker has it."""
        return self._config.given(f"listener.name.{self.name.lower()}.{setting}") or ""

    def parts(self, setting: str) -> list[str]:
        return [part.strip() for part in self.text(setting).split(",") if part.strip()]

    def number(self, setting: str, *, mechanism: str = "") -> int:
        return int(self.text(setting, mechanism=mechanism) or 0)
