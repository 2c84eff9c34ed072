"""Which team owns which clients: a file of teams, by which reports add up (`--owners`)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis.errors import WrongUseError
from config.problems import ConfigError
from config.source import number, parse

PATTERNS = {"user": "user", "client-id": "client_id"}
NO_TEAM = "(no team)"


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


@dataclass(frozen=True, slots=True)
class Owner:
    """Clients whose user and client-id match; None: any."""

    team: str
    user: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class Owners:
    """Entries in order: the first that matches counts."""

    entries: tuple[Owner, ...]

    def column(self, user: str = "user", client_id: str = "client_id") -> Column:
        """The team of a row, from the columns with its user and client-id. A null name counts as empty."""
        columns = {"user": user, "client_id": client_id}
        team = F.lit(NO_TEAM)
        for one in reversed(self.entries):
            fits = F.lit(True)
            for name in ("user", "client_id"):
                pattern = getattr(one, name)
                if pattern is not None:
                    fits &= F.coalesce(columns[name], F.lit("")).rlike(f"^{expression(pattern)}\\z")
            team = F.when(fits, F.lit(one.team)).otherwise(team)
        return team


def expression(pattern: str) -> str:
    """A pattern with `*` (any characters) and `?` (one) as a regular expression for Java and Python."""
    parts = {"*": "(?s:.*)", "?": "(?s:.)"}
    return "".join(parts.get(one, re.escape(one) if not one.isalnum() else one) for one in pattern)


def load_owners(path: str | Path) -> Owners:
    """Read and check a file of owners. Raises WrongUseError that names the place, the value and what was expected."""
    return to_owners(read_yaml("--owners", path), str(path))


def to_owners(values: Any, file: str) -> Owners:
    """The same from parsed values."""
    if not isinstance(values, dict) or set(values) != {"owners"} or not isinstance(values["owners"], list):
        raise WrongUseError(f"{file}: got {values!r:.80}, expected owners: and a list of entries with team and user")
    return Owners(tuple(_entry(one, f"{file}: owners[{place}]") for place, one in enumerate(values["owners"])))


def _entry(values: Any, place: str) -> Owner:
    known = ("team", *PATTERNS)
    if not isinstance(values, dict):
        raise WrongUseError(f"{place}: got {values!r:.80}, expected a mapping with {', '.join(known)}")
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(known)}"
            raise WrongUseError(f"{place}.{key}: unknown key, {hint}")
        if not isinstance(value, str) or (key == "team" and not value):
            raise WrongUseError(
                f"{place}.{key}: got {value!r}, expected text" + ("" if key == "team" else ", such as app-*")
            )
    if "team" not in values:
        raise WrongUseError(f"{place}.team: is missing, expected the name of a team")
    if not any(key in values for key in PATTERNS):
        raise WrongUseError(f"{place}: expected user or client-id of the team's clients ('*': all)")
    return Owner(values["team"], values.get("user"), values.get("client-id"))


PAYERS = {
    "user": "the principal",
    "client_id": "the client-id",
    "namespace": "the Kubernetes namespace of the sidecar",
    "team": "the team, from --owners",
}


@dataclass(frozen=True, slots=True)
class Prices:
    """What things cost, in the model's currency; 0: nothing."""

    produce_gb: float = 0.0
    """Per 10^9 bytes produced."""
    fetch_gb: float = 0.0
    """Per 10^9 bytes fetched."""
    request_hour: float = 0.0
    """Per hour of broker time."""
    mutation: float = 0.0
    """Per partition created or deleted."""
    idle_produce_mb_s_hour: float = 0.0
    """Per hour in which 10^6 bytes/s of a produce limit were reserved and not used."""
    idle_fetch_mb_s_hour: float = 0.0
    burst_gb: float = 0.0
    """Surcharge per 10^9 bytes moved above `burst_above` times the payer's mean rate of that hour."""


@dataclass(frozen=True, slots=True)
class PriceModel:
    """A whole price model."""

    currency: str
    payer: str = "user"
    burst_above: float = 2.0
    prices: Prices = field(default_factory=Prices)


def load_prices(path: str | Path) -> PriceModel:
    """Read and check a price model. Raises WrongUseError that names the place, the value and what was expected."""
    return to_prices(read_yaml("--prices", path), str(path))


def to_prices(values: Any, file: str) -> PriceModel:
    """The same from parsed values."""
    _known(values, PriceModel, file, "")
    prices = values.get("prices", {})
    _known(prices, Prices, file, "prices")
    currency = values.get("currency")
    if not isinstance(currency, str) or not currency.strip():
        raise WrongUseError(f"{file}: currency: got {currency!r}, expected a name such as EUR")
    payer = values.get("payer", "user")
    if payer not in PAYERS:
        raise WrongUseError(f"{file}: payer: got {payer!r}, expected one of {', '.join(PAYERS)}")
    rates = Prices(**{name: _price(file, f"prices.{name}", value, 0) for name, value in prices.items()})
    if rates == Prices():
        raise WrongUseError(f"{file}: prices: no prices, expected at least one of {', '.join(_names(Prices))}")
    above = _price(file, "burst_above", values.get("burst_above", 2.0), 1)
    return PriceModel(currency.strip(), payer, above, rates)


def _known(values: Any, model: type, file: str, place: str) -> None:
    known = _names(model)
    if not isinstance(values, dict):
        raise WrongUseError(
            f"{file}: {place or '(the whole file)'}: got {values!r}, expected a mapping with {', '.join(known)}"
        )
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(known)}"
            raise WrongUseError(f"{file}: {f'{place}.' if place else ''}{key}: unknown key, {hint}")


def _names(model: type) -> list[str]:
    return [one.name for one in fields(model)]


def _price(file: str, place: str, value: Any, least: float) -> float:
    if (found := number(value)) is None or found < least:
        raise WrongUseError(f"{file}: {place}: got {value!r}, expected a number of at least {least}")
    return float(found)
