"""Make archives of Kafka's classes (archive.py): `python -m tests.lab.kafka.prepare [VERSION...]`.

Without a version it makes those of the releases that `make test` runs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.lab.kafka.archive import archive_of, make_once
from tests.lab.kafka.cluster import BROKER_HEAP, KafkaCluster
from tests.lab.kafka.errors import EmbeddedKafkaError
from tests.lab.kafka.jars import resolve
from tests.lab.kafka.java import find_java
from tests.lab.kafka.tools import QUICK_JVM, TOOL_HEAP, run_tool
from tests.lab.releases import NEW, OLD

_DUMP_LIMIT_S: Final = 300.0
_Tool = tuple[str, tuple[str, ...], str | None]


def tools(version: str) -> list[_Tool]:
    """Programs whose classes are in the archive next to the broker's: class, arguments, standard input."""
    old = version.startswith("3.")
    server = ("--bootstrap-server", "{bootstrap}")
    records = (*server, "--topic", "t")
    reading = (*records, "--from-beginning", "--max-messages", "2", "--group", "g")
    group = (*records, "--group-id", "v", "--group-protocol", "consumer", "--verbose", "--max-messages", "2")
    return [
        ("org.apache.kafka.tools.TopicCommand", ("--create", "--topic", "t", *server), None),
        ("kafka.admin.ConfigCommand", ("--describe", "--entity-type", "clients", *server), None),
        (f"{'kafka' if old else 'org.apache.kafka'}.tools.ConsoleProducer", records, "one\ntwo\n"),
        ("org.apache.kafka.tools.consumer.ConsoleConsumer", reading, None),
        ("org.apache.kafka.tools.VerifiableConsumer", group, None),
        ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", (*server, "--describe", "--group", "g"), None),
        ("kafka.tools.StorageTool", ("random-uuid",), None),
    ]


def make_archive(version: str) -> None:
    java, classpath = find_java(), resolve(version)
    archive = archive_of(version, java, classpath)

    def make(scratch: Path) -> None:
        print(f"preparing the classes of Kafka {version} for quick starts")
        _dump(java, classpath, _loaded_classes(version, scratch.parent), scratch)

    make_once(archive, make)


def _loaded_classes(version: str, folder: Path) -> list[str]:
    def learning(name: str) -> tuple[str, ...]:
        return (*QUICK_JVM, f"-XX:DumpLoadedClassList={folder / name}.list")

    with KafkaCluster.start(1, version, jvm=(*learning("broker"), *BROKER_HEAP)) as cluster:
        for number, (main_class, arguments, stdin) in enumerate(tools(version)):
            filled = [argument.format(bootstrap=cluster.bootstrap[0]) for argument in arguments]
            run_tool(main_class, filled, version, stdin=stdin, jvm=(*learning(f"tool-{number}"), *TOOL_HEAP))
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.list"))]
    return list(dict.fromkeys(line for text in texts for line in text.splitlines()))


def _dump(java: Path, classpath: Sequence[Path], classes: Sequence[str], archive: Path) -> None:
    names = archive.with_name("all.classes")
    names.write_text("\n".join(classes) + "\n", encoding="utf-8")
    # The same collector as in the JVMs that will use it: archived objects are laid out for one.
    command = [str(java), "-XX:+UseSerialGC", "-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr"]
    command += [f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={archive}"]
    command += ["-cp", ":".join(str(path) for path in classpath)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EmbeddedKafkaError(f"{java} has not written an archive of classes in {_DUMP_LIMIT_S:g} s") from None
    if done.returncode or not archive.is_file():
        raise EmbeddedKafkaError(f"{java} cannot write an archive of classes:\n{done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    for each in sys.argv[1:] or (NEW, OLD):
        make_archive(each)
