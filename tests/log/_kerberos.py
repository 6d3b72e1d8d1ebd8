"""A realm of its own: MIT's KDC on a free port of this machine, its principals and keytabs, all in one directory."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

REALM = "LOGFLUME.TEST"
SERVICE_HOSTS = ("127.0.0.1", "localhost")
USERS = ("alice", "admin/ops", "odd!name", "bob")
TOOLS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))

KRB5_CONF = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
  kdc = 127.0.0.1:{port}
}}
"""
KDC_CONF = """[kdcdefaults]
kdc_listen = ""
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
}}
"""


def missing() -> str:
    """Return why there can be no realm here, "" where there can."""
    tools = [tool for tool in TOOLS if shutil.which(tool, path=_PATH) is None]
    if tools:
        return f"{', '.join(tools)} not found: apt-get install krb5-kdc krb5-admin-server krb5-user"
    return "" if find_spec("gssapi") else "the package gssapi is not installed: make kerberos"


class Realm:
    """Files by name; tickets of users in caches."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        for name, text in (("krb5.conf", KRB5_CONF), ("kdc.conf", KDC_CONF)):
            (directory / name).write_text(text.format(realm=REALM, port=port, directory=directory))
        self.environment = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5RCACHENAME": f"file2:{directory / 'replays'}",
        }

    def run(self, *command: str, text: str = "") -> None:
        environment = {**os.environ, **self.environment, "PATH": _PATH}
        done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    def keytab(self, principal: str, name: str) -> str:
        """Give a principal a new key, and write it to a file."""
        path = str(self.directory / name)
        self.run("kadmin.local", "-q", f"ktadd -k {path} {principal}")
        return path

    def ticket(self, principal: str, keytab: str, *options: str) -> str:
        """Return the name of a cache with a user's ticket."""
        cache = f"FILE:{self.directory}/{principal.replace('/', '-')}.cache"
        self.run("kinit", "-c", cache, "-k", "-t", keytab, *options, principal)
        return cache


@contextmanager
def realm(directory: Path) -> Iterator[Realm]:
    """Run a realm with the service kafka on this host and some users."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Realm(directory, port)
    made.run("kdb5_util", "create", "-s", "-P", "of no importance", "-r", REALM)
    principals = [*(f"kafka/{host}" for host in SERVICE_HOSTS), "http/127.0.0.1", *USERS]
    made.run("kadmin.local", text="".join(f"addprinc -randkey {name}\n" for name in principals))
    environment = {**os.environ, **made.environment, "PATH": _PATH}
    with (directory / "kdc.log").open("wb") as log:
        kdc = _start(environment, log)
        try:
            _wait(port, kdc)
            yield made
        finally:
            kdc.terminate()
            kdc.wait(20)


def _start(environment: dict[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=environment, stdout=log, stderr=log)


def _wait(port: int, kdc: "subprocess.Popen[bytes]") -> None:
    """Wait until the KDC takes connections."""
    while True:
        assert kdc.poll() is None, "the KDC ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            continue
