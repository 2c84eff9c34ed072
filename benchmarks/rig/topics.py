"""Topics of a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def create_topics(bootstrap: Sequence[str], topics: Mapping[str, Mapping[str, str]], *, partitions: int = 1) -> None:
    """Create topics (name -> its configuration) of so many partitions and one replica each."""
    from kafka.admin import KafkaAdminClient, NewTopic  # a client of the `demo` extra; nothing else here needs it

    admin = KafkaAdminClient(bootstrap_servers=list(bootstrap))
    try:
        configs = topics.items()
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(config)) for name, config in configs])
    finally:
        admin.close()
