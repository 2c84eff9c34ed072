"""Spark with less to do, for tests with a few rows in local files: Hadoop and its files, names of Java classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.lab.kafka.jars import LockedJar, fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_FILES: Final = LockedJar(
    "com.globalmentor",
    "hadoop-bare-naked-local-fs",
    "0.1.0",
    "",
    "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62",
)
"""Local files through Java alone. Hadoop's own starts `chmod` for each file, and for each file with its checksum: some
3 500 times for the tests of compaction."""
LOCAL_FILES_CLASS: Final = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
UNUSED: Final = ("mapred-default.xml", "mapred-site.xml", "yarn-default.xml", "yarn-site.xml")
"""Defaults of MapReduce and YARN, two thirds of all, of which nothing runs in tests. Spark copies all of Hadoop's
settings for each scan, each write and each task."""


def local_files() -> Path:
    """The jar with the class for local files, from the cache: for `spark.jars`."""
    return fetched([LOCAL_FILES], "tests")[0]


def make_quick(session: SparkSession) -> None:
    """Have this session's Hadoop leave out what tests do not use."""
    jvm: Any = session.sparkContext._jvm
    settings: Any = session.sparkContext._jsc
    configuration = jvm.org.apache.hadoop.conf.Configuration
    jvm.org.apache.hadoop.mapreduce.util.ConfigUtil.loadResources()  # the first job would add them
    resources = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("defaultResources")
    resources.setAccessible(True)
    names = resources.get(None)
    for name in UNUSED:
        names.remove(name)
    configuration.reloadExistingConfigurations()
    settings.hadoopConfiguration().set("fs.file.impl", LOCAL_FILES_CLASS)
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # what is open is of the other class


def keep_names() -> None:
    """Have py4j keep what it has learned of a class, a package or a static method, next to what it was asked for on:
    PySpark asks at every function of every column."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def is_known(name: str, found: Any) -> bool:
        return isinstance(found, JavaClass) or (isinstance(found, JavaPackage) and name.islower())

    def is_method(_name: str, found: Any) -> bool:
        return isinstance(found, JavaMember)

    for asked, keeps in ((JVMView, is_known), (JavaPackage, is_known), (JavaClass, is_method)):
        asked.__getattr__ = _keeping(asked.__getattr__, keeps)


def _keeping(ask: Callable[[Any, str], Any], keeps: Callable[[str, Any], bool]) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        found = ask(self, name)
        if keeps(name, found):
            self.__dict__[name] = found  # Python looks there first
        return found

    return answer
