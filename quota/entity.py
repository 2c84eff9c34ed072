"""Who is charged: kinds of quota, identities, the eight levels of precedence, and the keys of shared counters."""

import hashlib
from enum import Enum, IntEnum, StrEnum
from typing import Final, NamedTuple, Self

ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's principal name for a client that did not authenticate (``KafkaPrincipal.ANONYMOUS``)."""


class Kind(StrEnum):
    """What a quota limits, in Kafka's own split (``QuotaType``)."""

    PRODUCE = "produce"
    """Bytes of produce requests; limit ``producer_byte_rate`` in bytes/s (KIP-13)."""
    FETCH = "fetch"
    """Bytes of fetch responses; limit ``consumer_byte_rate`` in bytes/s (KIP-13)."""
    REQUEST = "request"
    """Busy time, charged in milliseconds; limit ``request_percentage`` in percent of one thread (KIP-124)."""
    MUTATION = "mutation"
    """Partitions created or deleted; limit ``controller_mutation_rate`` in partitions/s (KIP-599)."""


class Default(Enum):
    """The ``<default>`` entity of a quota entry: an enum, so that a user really called ``<default>`` stays distinct."""

    DEFAULT = "<default>"

    def __repr__(self) -> str:
        return "<default>"


DEFAULT: Final = Default.DEFAULT
Name = str | Default | None
"""How an entry names one side of its entity: a name, every name without its own entry, or no name at all."""


LONGEST_NAME: Final = 256
"""Characters of a name that are kept unchanged. The protocol allows client-ids of 32 767 bytes."""


def bounded_name(name: str) -> str:
    """A name as counters use it: unchanged, or for a very long one its beginning and its SHA-256, which is unique."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: LONGEST_NAME - 65]}~{digest}"


class Identity(NamedTuple):
    """The raw (not sanitised) names that a request arrives with; a null client-id is the empty string."""

    user: str
    client_id: str


class Level(IntEnum):
    """The eight levels of precedence, most specific first (``ClientQuotaManager``'s DefaultQuotaCallback)."""

    label: str
    """The level as people write it."""

    def __new__(cls, value: int, label: str) -> Self:
        """A member, whose value is its number."""
        level = int.__new__(cls, value)
        level._value_, level.label = value, label
        return level

    USER_CLIENT = 1, "user+client-id"
    USER_DEFAULT_CLIENT = 2, "user+<default client-id>"
    USER = 3, "user"
    DEFAULT_USER_CLIENT = 4, "<default user>+client-id"
    DEFAULT_USER_DEFAULT_CLIENT = 5, "<default user>+<default client-id>"
    DEFAULT_USER = 6, "<default user>"
    CLIENT = 7, "client-id"
    DEFAULT_CLIENT = 8, "<default client-id>"


class CounterKey(NamedTuple):
    """Which clients share one counter. ``None`` means: this name plays no part (Kafka writes an empty tag there).

    An empty *name* is not the same as no name: the client-id "" is a name
    like any other, so (alice, "") and (alice, None) are two counters although both are shown with an empty client tag.
    """

    user: str | None
    client_id: str | None

    @property
    def tags(self) -> tuple[str, str]:
        """Kafka's metric tags (user, client-id), with "" for a name that plays no part."""
        return (self.user or "", self.client_id or "")
