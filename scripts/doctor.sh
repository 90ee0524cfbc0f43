#!/usr/bin/env bash
# Says what this machine lacks, with the command that brings it. Exit 0: nothing.
set -u
python=${PYTHON:-python3}
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo "
lacks=0
need() { echo "missing: $1" >&2; echo "    install it with: $2" >&2; lacks=1; }

if ! command -v "$python" >/dev/null 2>&1; then
  need "Python 3.11 or newer ($python)" "${sudo}apt-get install python3 python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  need "Python 3.11 or newer ($("$python" --version) is too old)" "${sudo}apt-get install python3.11 python3.11-venv, then PYTHON=python3.11 make …"
elif ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  need "Python's venv module" "${sudo}apt-get install python3-venv"
fi

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
if ! command -v "$java" >/dev/null 2>&1; then
  need "Java 17 or newer (Spark runs on it)" "${sudo}apt-get install openjdk-17-jre-headless"
else
  major=$("$java" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p')
  if [ -n "$major" ] && [ "$major" -lt 17 ]; then
    need "Java 17 or newer (found $major)" "${sudo}apt-get install openjdk-17-jre-headless, and point JAVA_HOME at it"
  fi
fi
exit $lacks
