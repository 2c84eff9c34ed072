"""Which code the data path runs as: the pure Python modules, or those compiled from the same source (ADR 0023).

Compiled modules are kept in a folder of their own, each package's `_compiled`, because next to their sources they would
take precedence at import. They are used only while each source is still the compiled one, by its SHA-256, so that an
edited module takes effect. It is all of them or none: compiled modules rely on each other's layout. An installed kquota
uses them if it has them, unless KQUOTA_PURE is set; a checkout, only where KQUOTA_PURE is 0.
"""

import hashlib
import importlib
import os
from collections.abc import MutableSequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIRECTORY: Final = "_compiled"
SUMS: Final = f"quota/{DIRECTORY}/SHA256SUMS"

WHY_NOT = "quota is not imported yet"
"""Why the compiled modules are not used; empty when they are."""


def description() -> str:
    """For people: in the log line at start and `kquota --version`."""
    return f"pure Python: {WHY_NOT}" if WHY_NOT else "compiled"


def activate(path: MutableSequence[str], package: str) -> None:
    """Put a package's compiled modules first on its search path, if they are to be used. `quota` comes first."""
    global WHY_NOT
    if package == "quota":
        WHY_NOT = _why_not(os.environ.get("KQUOTA_PURE", ""))
    if WHY_NOT:
        return
    directory = str(built(package))
    path.insert(0, directory)
    if package == "quota":
        try:
            importlib.import_module("quota.rate")  # the one that imports no other
        except ImportError as error:
            path.remove(directory)
            WHY_NOT = str(error)


def built(package: str) -> Path:
    """The folder of a package's compiled modules."""
    return ROOT / package.replace(".", "/") / DIRECTORY


def _why_not(asked: str) -> str:
    if asked not in ("", "0"):
        return "KQUOTA_PURE is set"
    if asked != "0" and (ROOT / "proxy/net/io/calls.pyx").exists():
        return "this is a checkout, where KQUOTA_PURE=0 asks for compiled code"
    try:
        sums = (ROOT / SUMS).read_text().splitlines()
    except OSError:
        return "it has not been compiled"
    for line in sums:
        digest, name = line.split("  ", 1)
        source = ROOT / name
        try:
            found = hashlib.sha256(source.read_bytes()).hexdigest()
        except FileNotFoundError:
            if source.suffix != ".py":
                continue  # files only for the compiler are not installed
            return f"{name} is missing"
        if found != digest:
            return f"{name} has changed since it was compiled: make compile"
        compiled = source.parent / DIRECTORY / f"{source.stem}{EXTENSION_SUFFIXES[0]}"
        if source.suffix == ".py" and not compiled.exists():
            return f"{name} is not compiled for this Python"
    return ""
