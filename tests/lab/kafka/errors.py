"""What can go wrong around the embedded Kafka, each with a text for the person at the terminal."""

from __future__ import annotations


class EmbeddedKafkaError(Exception):
    """Any failure of the embedded Kafka; the message says what happened and what to do."""


class UnknownVersionError(EmbeddedKafkaError):
    """A Kafka version for which the project carries no list of checksums."""


class JarDownloadError(EmbeddedKafkaError):
    """A jar is not in the cache and could not be fetched."""


class JarChecksumError(EmbeddedKafkaError):
    """A jar's SHA-256 is not the committed one: damaged, or not the file it claims to be."""


class JavaNotFoundError(EmbeddedKafkaError):
    """No Java runtime that can run Kafka."""


class BrokerStartError(EmbeddedKafkaError):
    """A broker ended, or did not answer in time; the message carries the tail of its log."""


class ToolError(EmbeddedKafkaError):
    """One of Kafka's command-line tools could not do its work or took too long."""
