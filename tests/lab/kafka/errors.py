"""What can go wrong around the embedded Kafka, each with a text for the person at the terminal."""

from __future__ import annotations


class EmbeddedKafkaError(Exception):
    """Any failure of the embedded Kafka; the message says what happened and what to do."""


class BrokerStartError(EmbeddedKafkaError):
    """A broker ended, or did not answer in time; the message carries the tail of its log."""


class ToolError(EmbeddedKafkaError):
    """One of Kafka's command-line tools could not do its work or took too long."""
