"""YAML files named by options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from analysis.errors import WrongUseError


def read_yaml(option: str, path: str | Path) -> Any:
    """The values in the file that `option` names. Raises WrongUseError with the option, the file and the reason."""
    try:
        return yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise WrongUseError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        raise WrongUseError(f"{option} {path}: no YAML: {' '.join(str(error).split())}") from None
