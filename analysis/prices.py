"""The price model of `chargeback`: a YAML file, checked before anything is computed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from analysis.errors import WrongUseError
from analysis.owners import read_yaml
from config.scalars import number

PAYERS = {
    "user": "the principal",
    "client_id": "the client-id",
    "namespace": "the Kubernetes namespace of the sidecar",
    "team": "the team, as --owners says",
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
    rates = Prices(**{name: _number(file, f"prices.{name}", value, 0) for name, value in prices.items()})
    if rates == Prices():
        raise WrongUseError(
            f"{file}: prices: nothing has a price, expected at least one of {', '.join(_names(Prices))}"
        )
    above = _number(file, "burst_above", values.get("burst_above", 2.0), 1)
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


def _number(file: str, place: str, value: Any, least: float) -> float:
    if (found := number(value)) is None or found < least:
        raise WrongUseError(f"{file}: {place}: got {value!r}, expected a number of at least {least}")
    return float(found)
