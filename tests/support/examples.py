"""How many examples hypothesis tries."""

from __future__ import annotations

from hypothesis import settings


def examples(ordinary: int) -> int:
    """`ordinary` in every-day runs; a profile (tests/conftest.py) with N times 100 examples has N times that."""
    profile = settings.default
    assert profile is not None
    return ordinary * profile.max_examples // 100
