"""A client-id that steers terminals and turns the direction of writing, and what is harmless to show."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Final

CLIENT: Final = "a\x1b[2J\x9b31mb\u202egnol\u2028\x7f"
"""A client-id as a client can send it: it is UTF-8."""
CLIENT_SHOWN: Final = r'"a\x1b[2J\x9b31mb\u202egnol\u2028\x7f"'

CONFIGURED: Final = "a\u202egnol\u2028"
"""The same as far as a configuration may have it: without control characters."""
CONFIGURED_SHOWN: Final = r'"a\u202egnol\u2028"'


def harmless(text: str) -> bool:
    """No character but line breaks that a terminal or a reader could take for something else."""
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def write_config(path: Path) -> Path:
    """A configuration file with a quota for that client-id."""
    values = {
        "upstream": {"bootstrap": ["k:9092"]},
        "identity": {"sources": ["static"], "static": f"user{CONFIGURED}"},
        "quotas": [
            {"client-id": CONFIGURED, "producer_byte_rate": 1000},
            {"user": f"user{CONFIGURED}", "max_connections": 4},
        ],
    }
    path.write_text(json.dumps(values))
    return path
