"""The broker room: tests against real Apache Kafka brokers."""

from tests.support.brokers import java_tool, kafka, kafka3, kafka_391, kafka_secure, topic

__all__ = ["java_tool", "kafka", "kafka3", "kafka_391", "kafka_secure", "topic"]
