"""Logging of the JVMs: quiet on the terminal. Brokers write to a file, tools send warnings to stderr.

Kafka before 4 logs through reload4j (log4j 1 syntax), Kafka 4 through log4j 2. The two small files per version are
written into the cache when they are not there yet; what differs between processes comes from system properties.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.kafka.cache import cache_dir

PATTERN = "[%d] %p %m (%c)%n"

_BROKER_3 = f"""\
log4j.rootLogger=${{kquota.log.level}}, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File=${{kquota.log.file}}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern={PATTERN}
"""
_TOOL_3 = f"""\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern={PATTERN}
"""
# No shutdown hook: log4j would stop writing while the broker still reports how its shutdown goes.
_BROKER_4 = f"""\
<Configuration status="ERROR" shutdownHook="disable"><Appenders>
  <File name="file" fileName="${{sys:kquota.log.file}}"><PatternLayout pattern="{PATTERN}"/></File>
</Appenders><Loggers><Root level="${{sys:kquota.log.level}}"><AppenderRef ref="file"/></Root></Loggers></Configuration>
"""
_TOOL_4 = f"""\
<Configuration status="ERROR"><Appenders>
  <Console name="stderr" target="SYSTEM_ERR"><PatternLayout pattern="{PATTERN}"/></Console>
</Appenders><Loggers><Root level="WARN"><AppenderRef ref="stderr"/></Root></Loggers></Configuration>
"""


def broker_arguments(version: str, log_file: Path) -> list[str]:
    """JVM arguments that make a broker log warnings into `log_file`."""
    return [
        f"-Dkquota.log.file={log_file}",
        "-Dkquota.log.level=WARN",
        _selection(version, "broker", _BROKER_3, _BROKER_4),
    ]


def tool_arguments(version: str) -> list[str]:
    """JVM arguments that keep a tool's stdout for its results."""
    return [_selection(version, "tool", _TOOL_3, _TOOL_4)]


def _selection(version: str, kind: str, of_3: str, of_4: str) -> str:
    old = not version.rpartition("-")[2].startswith("4.")
    text = of_3 if old else of_4
    file = cache_dir() / "logging" / (f"{kind}-log4j.properties" if old else f"{kind}-log4j2.xml")
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, file)
    return f"-Dlog4j.configuration=file:{file}" if old else f"-Dlog4j2.configurationFile={file}"
