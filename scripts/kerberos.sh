#!/usr/bin/env bash
# kerberos.sh VENV: make sure that MIT's KDC and the package gssapi are there for the tests of Kerberos; install them where we may, else go on.
set -u
venv=$1
export PATH=$PATH:/usr/sbin
if ! { command -v krb5kdc && command -v kinit && command -v krb5-config; } >/dev/null; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing MIT Kerberos for the tests of GSSAPI"
    timeout 120 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc >/dev/null 2>&1
  fi
fi
if ! command -v krb5-config >/dev/null; then
  echo "MIT Kerberos is missing: the tests of GSSAPI are left out. To have them: sudo apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev" >&2
  exit 0
fi
"$venv/bin/python" -c 'import gssapi' 2>/dev/null && exit 0
echo "installing gssapi into $venv (once; it is compiled here)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[gssapi]' \
  || echo "gssapi could not be installed: the tests of GSSAPI are left out" >&2
exit 0
