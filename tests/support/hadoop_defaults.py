"""Hadoop's defaults without YARN's: Spark copies all of Hadoop's settings for each scan, each write and each task.

YARN has half of them (520 of 1 074), and nothing of YARN runs in tests.
"""

from __future__ import annotations

from typing import Any


def leave_yarn_out(jvm: Any) -> None:
    """Have Hadoop, in this JVM, read no defaults of YARN, neither for settings that exist nor for new ones."""
    configuration = jvm.org.apache.hadoop.conf.Configuration
    jvm.org.apache.hadoop.mapreduce.util.ConfigUtil.loadResources()  # the first job would add them
    resources = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("defaultResources")
    resources.setAccessible(True)
    names = resources.get(None)
    for name in ("yarn-default.xml", "yarn-site.xml"):
        names.remove(name)
    configuration.reloadExistingConfigurations()
