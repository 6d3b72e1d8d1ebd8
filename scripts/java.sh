#!/usr/bin/env bash
# java.sh: make sure that Java 17 or newer is there for the Spark parts; install it where we may, else say how and go on.
set -u
version() { "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p'; }
found=$(version)
if [ "${found:-0}" -ge 17 ]; then exit 0; fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing Java (openjdk, headless) for the Spark parts"
  if apt-get -qq update && { apt-get -qq install -y openjdk-17-jre-headless >/dev/null 2>&1 || apt-get -qq install -y default-jre-headless >/dev/null 2>&1; }; then
    exit 0
  fi
fi
echo "Java 17 or newer is missing (found: ${found:-none}): the Spark parts are left out. To have them: sudo apt-get install openjdk-17-jre-headless" >&2
exit 0
