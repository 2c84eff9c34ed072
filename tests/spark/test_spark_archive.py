"""The sessions of tests have Spark's classes from an archive, which `make classes` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import spark_archive
from tests.support.spark_archive import JAR_TIME_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_uses_it(spark: SparkSession) -> None:
    """A JVM says nothing of an archive that it refuses: it is then not in its memory."""
    archive = spark_archive.spark_archive()
    assert archive is not None
    assert archive.is_file(), "make classes makes it"
    jvm: Any = spark.sparkContext._jvm
    maps = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
    assert str(archive) in maps


def test_an_environment_made_anew_at_the_same_place_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar, archive = tmp_path / "spark.jar", tmp_path / "spark.jsa"
    jar.write_bytes(b"jar")
    archive.write_bytes(b"archive")
    monkeypatch.setattr(spark_archive, "jars", lambda: [jar])
    monkeypatch.setattr(spark_archive, "spark_archive", lambda: archive)
    monkeypatch.setattr(spark_archive, "learn", lambda *_: pytest.fail("it was made again"))
    for installed_s in (JAR_TIME_S + 86_400, JAR_TIME_S + 172_800):
        os.utime(jar, (installed_s, installed_s))
        spark_archive.make()
        assert jar.stat().st_mtime == JAR_TIME_S
