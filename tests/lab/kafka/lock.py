"""Write the lock file of a Kafka version: `python -m tests.lab.kafka.lock 4.4.0 3.9.1 clients-3.7.2 streams-4.4.0`.

Resolves the broker and its command-line tools with jgo, fetches every jar into a fresh folder (never from a cache, so
that a damaged copy cannot become the reference), and writes `checksums/kafka-<version>.txt`; with `clients-`,
`streams-`, `connect-` or `mirror-` before the version, of those alone. Run it when a version is added; review the
difference before committing. jgo compares each download with the SHA-1 the repository publishes, and a difference fails
here.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from logging.handlers import BufferingHandler
from pathlib import Path

from tests.lab.kafka.errors import EmbeddedKafkaError
from tests.lab.kafka.jars import PARALLEL_DOWNLOADS, LockedJar, _download, maven, sha256_of
from tests.lab.releases import CHECKSUMS

# Kafka's POMs name slf4j only: the binding is what Kafka's own distribution adds next to them.
LOG_BINDING = {
    "1": "org.slf4j:slf4j-reload4j:1.7.36",
    "2": "org.slf4j:slf4j-reload4j:1.7.36",
    "3": "org.slf4j:slf4j-reload4j:1.7.36",
    "4": "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
}
# The tools' POM pulls in Kafka Connect and, through it, a web server: 40 jars that no tool we run ever loads.
NOT_NEEDED = ("org.apache.kafka", "connect-runtime")
ARTIFACTS = {
    "kafka": ("kafka_2.13", "kafka-tools"),
    "clients": ("kafka-clients",),
    "streams": ("kafka-streams",),
    "connect": ("connect-runtime", "connect-json"),
    "mirror": ("connect-runtime", "connect-json", "connect-mirror"),
}


def lock(version: str, repository: Path, names: Sequence[str]) -> list[LockedJar]:
    context = maven(repository)
    roots = [f"org.apache.kafka:{name}:{version}" for name in names]
    roots.append(LOG_BINDING[version.split(".")[0]])
    without = [context.project(*NOT_NEEDED)]
    # "!": jgo would otherwise treat each root's POM as a bill of materials, and log4j's manages kafka-clients to an
    # old version.
    dependencies = [context.create_dependency(f"{root}!", exclusions=without) for root in roots]
    inputs, transitive = context.resolver.resolve(dependencies)
    wanted = [*inputs, *(dep for dep in transitive if dep.scope in ("compile", "runtime"))]

    def fetch(jar: LockedJar) -> LockedJar:
        _download(context, jar, path := repository / jar.path)
        return replace(jar, sha256=sha256_of(path))

    jars = {
        one.key: LockedJar(one.groupId, one.artifactId, one.version, one.classifier, "")
        for one in (dep.artifact for dep in wanted)
    }
    if mixed := [jar.coordinate for jar in jars.values() if jar.group == "org.apache.kafka" and jar.version != version]:
        raise EmbeddedKafkaError(f"resolving Kafka {version} gave jars of other versions: {', '.join(mixed)}")
    with ThreadPoolExecutor(max_workers=PARALLEL_DOWNLOADS) as pool:
        return list(pool.map(fetch, jars.values()))


def main(versions: list[str]) -> int:
    wanted = [(name if "-" in name else f"kafka-{name}").split("-") for name in versions]
    if not versions or any(of not in ARTIFACTS or version.split(".")[0] not in LOG_BINDING for of, version in wanted):
        print(f"use: python -m tests.lab.kafka.lock [{'|'.join(ARTIFACTS)}-]VERSION...   (e.g. 4.4.0)", file=sys.stderr)
        return 2
    # jgo only warns when a download differs from the published SHA-1; a lock file must not be made of such a file.
    log = BufferingHandler(capacity=sys.maxsize)
    logging.getLogger("jgo").addHandler(log)
    for of, version in wanted:
        with tempfile.TemporaryDirectory(prefix="kquota-lock-") as scratch:
            jars = lock(version, Path(scratch), ARTIFACTS[of])
        if mismatches := [line for one in log.buffer if "mismatch" in (line := one.getMessage()).lower()]:
            raise EmbeddedKafkaError("\n".join(mismatches))
        name, what = (version, "broker and command-line tools") if of == "kafka" else (f"{of}-{version}", of)
        lines = [
            f"# Apache Kafka {version}: {what}. SHA-256 and coordinate of each jar, class path order.",
            f"# Written by `python -m tests.lab.kafka.lock {name}`; do not edit.",
            *(f"{jar.sha256}  {jar.coordinate}" for jar in jars),
        ]
        file = CHECKSUMS / f"{of}-{version}.txt"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{file}: {len(jars)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
