"""Kafka's own Java programs: performance tools, console clients, admin commands."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO, Any

from tests.lab.kafka.archive import archive_arguments
from tests.lab.kafka.errors import ToolError
from tests.lab.kafka.jars import DEFAULT_VERSION, resolve
from tests.lab.kafka.java import find_java
from tests.lab.kafka.javalog import tool_arguments
from tests.lab.kafka.process import GuardedProcess

# One collector thread and the quick compiler only: the tools live for seconds, next to a broker, on few cores.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TOOL_HEAP = ("-Xmx256m",)
KILL_LIMIT_S = 5.0
MOVED = {"kafka.admin.ConfigCommand": ((4, 4), "org.apache.kafka.tools.ConfigCommand")}
"""Programs by their former names: from which release on they have another."""


def java_command(main_class: str, args: Sequence[str], version: str, jvm: Sequence[str]) -> list[str]:
    java, jars = find_java(), resolve(version)
    classpath = ":".join(str(path) for path in jars)
    since, moved = MOVED.get(main_class, (None, main_class))
    if since and tuple(map(int, version.split("."))) >= since:
        main_class = moved
    return [str(java), *archive_arguments(version, java, jars), *jvm, "-cp", classpath, main_class, *args]


def start_tool(
    main_class: str,
    args: Sequence[str],
    version: str = DEFAULT_VERSION,
    *,
    jvm: Sequence[str] = (*QUICK_JVM, *TOOL_HEAP),
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    stderr: int | IO[Any] | None = subprocess.PIPE,
) -> GuardedProcess:
    """Start one of Kafka's programs, e.g. `org.apache.kafka.tools.ConsoleProducer`; it ends with us at the latest. The
    pipes are the caller's to close, as with any Popen."""
    command = java_command(main_class, args, version, (*jvm, *tool_arguments(version)))
    return GuardedProcess(command, stdin=stdin, stdout=stdout, stderr=stderr)


def run_tool(
    main_class: str,
    args: Sequence[str],
    version: str = DEFAULT_VERSION,
    timeout_s: float = 60.0,
    stdin: str | None = None,
    *,
    check: bool = True,
    jvm: Sequence[str] = (*QUICK_JVM, *TOOL_HEAP),
) -> subprocess.CompletedProcess[str]:
    source = subprocess.PIPE if stdin is not None else subprocess.DEVNULL
    with start_tool(main_class, args, version, jvm=jvm, stdin=source) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate(timeout=KILL_LIMIT_S)
            raise ToolError(f"{main_class} took longer than {timeout_s:g} s{_output(out, err)}") from None
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise ToolError(f"{main_class} {' '.join(args)} ended with code {process.returncode}{_output(out, err)}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _output(out: str, err: str) -> str:
    return "".join(f"\n{name}:\n{text.strip()}" for name, text in (("stdout", out), ("stderr", err)) if text.strip())
