#!/usr/bin/env bash
# Brings sets of jars into .cache/jars, once; needs no network afterwards. Usage: fetch_jars.sh [SET…]
# The sets are in scripts/jars. A Kafka broker and Spark's Kafka connector (about 60 MB), and Delta with Iceberg (70 MB),
# come if none is named; an object store (60 MB) and HDFS (90 MB) are further ones.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=.cache/jars
sudo=""
sets=("${@:-broker}")
[ $# != 0 ] || sets+=(connector lake)
[ "$(id -u)" = 0 ] || sudo="sudo "

for set in "${sets[@]}"; do
  target="$cache/$set-$(cksum <"scripts/jars/$set.xml" | cut -d' ' -f1)" # another version is another directory
  [ -d "$target" ] && continue
  if ! command -v mvn >/dev/null 2>&1; then
    echo "missing: Maven, which brings the jars" >&2
    echo "    install it with: ${sudo}apt-get install maven" >&2
    exit 1
  fi
  echo "fetching the jars of scripts/jars/$set.xml into $target" >&2
  mkdir -p "$cache"
  hidden=$(mktemp -d "$cache/.$set.XXXXXX")
  trap 'rm -rf "$hidden"' EXIT
  cp "scripts/jars/$set.xml" "$hidden/pom.xml"
  mvn --batch-mode --quiet -f "$hidden/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory="$PWD/$hidden/jars" >&2
  mv "$hidden/jars" "$target"
  rm -rf "$hidden"
done
for set in "${sets[@]}"; do
  echo "$cache/$set-$(cksum <"scripts/jars/$set.xml" | cut -d' ' -f1)"
done
