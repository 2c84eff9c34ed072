"""Tests with real Apache Kafka brokers."""

from tests.support.brokers import java_tool, kafka, kafka3, kafka_391, kafka_of, kafka_secure, topic
from tests.support.browser import browse

__all__ = ["browse", "java_tool", "kafka", "kafka3", "kafka_391", "kafka_of", "kafka_secure", "topic"]
