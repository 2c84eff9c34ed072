"""JVMs start from an archive of Kafka's classes, and clusters of one kind are formatted once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.kafka import DEFAULT_VERSION, KafkaCluster, find_java, resolve, run_tool
from deploy.kafka.archive import COPIES, archive_arguments, archive_of, archive_path, make_once
from deploy.kafka.prepare import make_archive
from deploy.kafka.tools import QUICK_JVM, TOOL_HEAP

TOOL = ("kafka.tools.StorageTool", ["random-uuid"])


@pytest.fixture(scope="module")
def archive() -> Path:
    return make_archive()


def test_there_is_one_archive_for_java_and_the_jars(archive: Path) -> None:
    jars = resolve(DEFAULT_VERSION).classpath
    assert archive == archive_of(DEFAULT_VERSION, find_java(), jars)
    assert archive_arguments(DEFAULT_VERSION, find_java(), jars) == [f"-XX:SharedArchiveFile={archive}"]
    # Of other jars there is none, and JVMs start without.
    assert archive_arguments(DEFAULT_VERSION, find_java(), jars[1:]) == []


def test_jars_that_were_written_anew_have_another_archive(tmp_path: Path) -> None:
    """A JVM would ignore that of before."""
    java, jar = find_java(), tmp_path / "a.jar"
    jar.write_bytes(b"jar")
    os.utime(jar, (1000, 1000))
    before = archive_path("a", java, [jar])
    assert archive_path("a", java, [jar]) == before
    os.utime(jar, (1001, 1001))
    later = archive_path("a", java, [jar])
    jar.write_bytes(b"more")
    os.utime(jar, (1001, 1001))
    assert len({before, later, archive_path("a", java, [jar])}) == 3


def test_archives_that_were_not_used_for_longest_are_deleted(tmp_path: Path) -> None:
    """Of one name: those of other versions are used by others."""
    names = [f"kafka-4.2.0-{number:016x}.jsa" for number in range(COPIES + 1)]
    other = tmp_path / f"kafka-4.2.0-rc1-{1:016x}.jsa"
    other.touch()
    os.utime(other, (1, 1))
    for number, name in enumerate(names):
        make_once(tmp_path / name, Path.touch)
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
        if number == COPIES - 1:
            make_once(tmp_path / names[0], lambda _path: pytest.fail("it is there"))
    left = {path.name for path in tmp_path.glob("*.jsa")}
    assert left == {other.name, *names} - {names[1]}, "the first one was used again"


def test_the_jvm_takes_its_classes_from_there(archive: Path) -> None:
    """`-Xshare:on` ends a JVM that cannot use its archive; the log names the source of each class."""
    jvm = ("-Xshare:on", "-Xlog:class+load:stderr", *(flag for flag in QUICK_JVM if "share" not in flag), *TOOL_HEAP)
    lines = run_tool(*TOOL, jvm=jvm).stderr.splitlines()
    loaded = [line for line in lines if " org.apache.kafka." in line]
    assert loaded
    shared = [line for line in loaded if "shared objects file" in line]
    assert len(shared) > 0.9 * len(loaded), [line for line in loaded if line not in shared]


@pytest.mark.parametrize("content", [b"", b"something else"], ids=["empty", "foreign"])
def test_a_file_that_is_no_archive_is_none(content: bytes, tmp_path: Path) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(content)
    done = run_tool(*TOOL, jvm=(*QUICK_JVM, *TOOL_HEAP, f"-XX:SharedArchiveFile={other}"))
    assert len(done.stdout.strip()) == 22  # a Uuid in base 64, and not a word of the JVM
    assert done.stderr == ""


def test_the_next_cluster_is_formatted_without_a_jvm_and_has_ids_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for _ in range(2):
        with KafkaCluster.start(1) as cluster:
            text = (cluster.directory / "broker-1" / "data" / "meta.properties").read_text()
            ids.append(dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#")))
        monkeypatch.setattr("deploy.kafka.cluster.run_tool", lambda *_: pytest.fail("a JVM was started"))
    for name, different in {"cluster.id": True, "directory.id": True, "node.id": False, "version": False}.items():
        assert (ids[0][name] != ids[1][name]) == different, name
