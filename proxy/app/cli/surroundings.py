"""What `kquota check` warns of beyond the file itself: files that it names, and values that are probably mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from config.model import Config
from config.problems import Place, Problem
from config.source import Source
from config.types import DEFAULT_WORD
from config.units import readable_span

MOST = 20
FEW_BYTES = 1000
"""Per second: no Kafka client is of use with less."""
_NO_PREFIX = "Kafka has no prefixes: name each user"
PATIENCE_MS = 120_000
"""Kafka's Java producer gives a record up after this (delivery.timeout.ms); librdkafka's default is longer, 5 min."""


def warnings_of_surroundings(config: Config) -> list[Problem]:
    """Warnings only, because a file is not always checked where it is used."""
    source = config.source or Source("(no file)")
    found = [
        *_ports(config, source),
        *_patience(config, source),
        *_directory(config, source),
        *islice(_names(config, source), MOST),
        *islice(_rates(config, source), MOST),
    ]
    for place, path in _files(config):
        if not Path(path).exists():
            found.append(source.problem(place, "no such file on this machine", path))
    return found


def _ports(config: Config, source: Source) -> list[Problem]:
    ports = config.listen.broker_ports
    count, named = ports.last - ports.first + 1, len(config.upstream.bootstrap)
    if config.mode != "rewrite" or count >= named:
        return []
    text = (
        f"has fewer ports ({count}) than upstream.bootstrap has brokers ({named}): each broker of the cluster takes one"
    )
    return [source.problem(("listen", "broker_ports"), text, f"{ports.first}-{ports.last}")]


def _patience(config: Config, source: Source) -> list[Problem]:
    if config.pacing != "smooth" or 0 < config.max_mute <= PATIENCE_MS:
        return []
    told = readable_span(config.max_mute) if config.max_mute else "0, without a cap,"
    text = f"{told} exceeds clients' timeouts: Java producers drop records after {readable_span(PATIENCE_MS)}"
    return [source.problem(("max_mute",), f"{text} (delivery.timeout.ms)")]


def _names(config: Config, source: Source) -> Iterator[Problem]:
    """Names that mean something else to whoever wrote them."""
    for index, entry in enumerate(config.quotas):
        for key, name in (("user", entry.user), ("client-id", entry.client_id)):
            if not isinstance(name, str) or name == DEFAULT_WORD:
                continue
            text = None
            if name.endswith("*"):
                text = "Kafka has no prefixes: name each client-id, or a user" if key == "client-id" else _NO_PREFIX
            elif name.lower() == "default":
                text = f"is the {key} {name}; did you mean {DEFAULT_WORD}?"
            elif key == "user" and name.startswith("User:"):
                text = f"a user is the name alone; did you mean {name.removeprefix('User:')}?"
            if text is not None:
                yield source.problem(("quotas", index, key), text, name)


def _rates(config: Config, source: Source) -> Iterator[Problem]:
    for index, entry in enumerate(config.quotas):
        for name in ("producer_byte_rate", "consumer_byte_rate"):
            rate = getattr(entry, name)
            if rate is not None and rate < FEW_BYTES:
                text = f"{rate:g} bytes per second: did you mean {rate:g}k or {rate:g}M?"
                yield source.problem(("quotas", index, name), text, int(rate))


def _directory(config: Config, source: Source) -> list[Problem]:
    if config.export is None or config.export.directory is None or config.export.directory.startswith("/"):
        return []
    text = "is relative to the sidecar's working directory; expected an absolute path"
    return [source.problem(("export", "directory"), text, config.export.directory)]


def _files(config: Config) -> Iterator[tuple[Place, str]]:
    settings = (
        (("listen", "tls"), config.listen.tls, ("certificate_file", "key_file", "client_ca_file")),
        (("upstream", "tls"), config.upstream.tls, ("ca_file", "certificate_file", "key_file")),
        (("upstream", "sasl"), config.upstream.sasl, ("password_file", "token_file")),
        (("identity", "static"), config.identity.static, ("file", "directory")),
        (("fleet",), config.fleet, ("key_file",)),
    )
    for place, setting, names in settings:
        for name in names:
            path = getattr(setting, name, None)
            if path is not None:
                yield (*place, name), path
