"""Work in steps: a generator. Others are served between two steps."""

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, Any, Result]


def whole(steps: Steps[Result]) -> Result:
    """The result of all steps at once."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
