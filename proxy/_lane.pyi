"""What proxy/_lane.pyx offers."""

from typing import Final

ABI: Final[int]
