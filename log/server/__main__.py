"""Runs a broker on its own: `python -m logflume.log.server --data DIR --listen HOST:PORT`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence

from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.children import end_with_parent
from logflume.log.collector import ShortCollections
from logflume.log.errors import LogflumeError
from logflume.log.logs import configure_logs

from .addresses import Address, parse_address
from .config_files import configured_data_dir, gather_configs, refuse_contradictions
from .listeners import named_addresses, plan_listeners, refuse_open_listeners
from .shell import BrokerShell

DEFAULT_LISTEN = "127.0.0.1:9092"
SWITCH_INTERVAL_S = 0.0001
"""The loop has the interpreter's lock back from other threads so soon: it asks for it ten times a request. Python says 5 ms."""


async def serve(
    data_dir: str,
    *,
    listen: Sequence[Address] = (),
    advertised: Address | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Serve a data directory until SIGTERM or SIGINT. Prints one line when ready. Raises as `BrokerShell.start`."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    shell = await BrokerShell.start(data_dir, listen=listen, advertised=advertised, configs=configs)
    ShortCollections().install()
    health = f"; metrics on {shell.http_scheme}://{shell.http_address}/metrics" if shell.http_address else ""
    print(f"logflume broker ready: {data_dir} on {', '.join(map(str, shell.addresses))}{health}", flush=True)
    await stopping.wait()
    await shell.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and serve; returns the exit code."""
    end_with_parent(signal.SIGTERM)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    parser = argparse.ArgumentParser(
        prog="python -m logflume.log.server",
        description="A logflume broker, which speaks the Kafka protocol. "
        "Settings: --config, then LOGFLUME_CONFIG_* variables, then --config-file, then the defaults.",
    )
    parser.add_argument("--data", metavar="DIR", help="data directory, made if missing; default: log.dirs of the settings")
    parser.add_argument(
        "--listen", action="append", default=[], metavar="HOST:PORT", help=f"default: listeners of the settings, {DEFAULT_LISTEN}"
    )
    parser.add_argument("--advertise", metavar="HOST:PORT", help="address told to clients, if it differs")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE", help="a broker config, Kafka's names")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="json: one object a line")
    parser.add_argument("--config-file", metavar="FILE", help="broker configs: properties as Kafka's, or .toml")
    parser.add_argument("--insecure", action="store_true", help="let everybody who reaches a listener use it, on any address")
    options = parser.parse_args(arguments)
    configure_logs(options.log_format)
    raise_file_limit()
    try:
        configs = gather_configs(options.config_file, options.config, os.environ)
        refuse_contradictions(configs, listen=options.listen, advertise=options.advertise, data=options.data)
        if options.insecure:
            print("warning: --insecure: whoever reaches a listener may use it without saying who he is", file=sys.stderr)
        listen = options.listen or ([] if configs.get("listeners") else [DEFAULT_LISTEN])
        addresses = [parse_address(text) for text in listen]
        if not options.insecure:
            given = configs | ({"listeners": named_addresses(addresses)} if addresses else {})
            refuse_open_listeners(plan_listeners(BrokerConfig(given)), BrokerConfig(given))
        asyncio.run(
            serve(
                options.data or configured_data_dir(configs),
                listen=addresses,
                advertised=parse_address(options.advertise) if options.advertise else None,
                configs=configs,
            )
        )
    except LogflumeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each partition and each connection needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
