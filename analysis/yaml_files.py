"""YAML files named by options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.errors import WrongUseError
from config.problems import ConfigError
from config.source import parse


def read_yaml(option: str, path: str | Path) -> Any:
    """The values in the file that `option` names. Raises WrongUseError with the option, the file and the reason."""
    try:
        source = parse(str(path), Path(path).read_bytes())
    except OSError as error:
        raise WrongUseError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
    except ConfigError as error:
        raise WrongUseError(f"{option} {error}") from None
    if source.problems:
        raise WrongUseError("\n".join(f"{option} {problem}" for problem in source.problems))
    return source.values
