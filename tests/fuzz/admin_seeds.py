"""Bodies of administrators' requests and of brokers' answers to them, made by an independent encoder (kio)."""

from __future__ import annotations

import random

from kio.static.constants import EntityType

from proxy.core.wire import schema
from proxy.core.wire.apis import METADATA
from tests.fuzz.targets import ADMIN_APIS
from tests.support.session_tools import encode
from tests.support.wire_tools import kio_class, kio_versions, sample


def bodies() -> list[bytes]:
    """Inputs of the target `administration`: API, version, where the answer begins, request body, answer body."""
    found = []
    known = set(kio_versions(EntityType.request))
    for index, key in enumerate(ADMIN_APIS):
        first, last = schema.APIS[key][1], schema.APIS[key][2]
        for version in range(first, last + 1):
            if (key, version) not in known:
                continue
            for seed, answered_by in enumerate(((key, version), (METADATA, 9))):
                rng = random.Random(seed)
                body = encode(sample(kio_class(key, version, EntityType.request), rng, repeat=1))
                answer = encode(sample(kio_class(*answered_by), rng, repeat=1))
                if len(body) + len(answer) < 4000:
                    split = -(-255 * len(body) // (len(body) + len(answer)))
                    found.append(bytes((index, version - first, split)) + body + answer)
    return found
