"""Which team owns which clients, and what things cost: the files of `--owners` and `--prices`, as pydantic models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis.errors import WrongUseError
from config.load import validate
from config.problems import ConfigError
from config.source import parse
from config.types import Section, setting, text

NO_TEAM = "(no team)"
_Model = TypeVar("_Model", bound=Section)
_Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Owner(Section):
    """Clients whose user and client-id match; None: any."""

    team: Annotated[str, text("the name of a team")] = setting(..., "The name of the team.")
    user: str | None = None
    client_id: str | None = setting(None, "A pattern, as of user.", alias="client-id")

    def _expected_together(self) -> str | None:
        nobody = self.user is None and self.client_id is None
        return "user or client-id of the team's clients ('*': all)" if nobody else None


class Owners(Section):
    """Entries in order: the first that matches counts."""

    entries: list[Owner] = setting(..., "A list of entries with team, user, client-id.", alias="owners")

    def column(self, user: str = "user", client_id: str = "client_id") -> Column:
        """The team of a row, from the columns with its user and client-id. A null name counts as empty."""
        # One expression of many branches: one in another, Spark takes some 200.
        team: Any = F
        for one in self.entries:
            fits = F.lit(True)
            for name, pattern in ((user, one.user), (client_id, one.client_id)):
                if pattern is not None:
                    fits &= F.coalesce(name, F.lit("")).rlike(f"^{expression(pattern)}\\z")
            team = team.when(fits, F.lit(one.team))
        return cast(Column, team.otherwise(F.lit(NO_TEAM))) if self.entries else F.lit(NO_TEAM)


class Prices(Section):
    """What things cost, in the model's currency; 0: nothing."""

    produce_gb: _Price = 0.0
    """Per 10^9 bytes produced."""
    fetch_gb: _Price = 0.0
    """Per 10^9 bytes fetched."""
    request_hour: _Price = 0.0
    """Per hour of broker time."""
    mutation: _Price = 0.0
    """Per partition created or deleted."""
    idle_produce_mb_s_hour: _Price = 0.0
    """Per hour in which 10^6 bytes/s of a produce limit were reserved and not used."""
    idle_fetch_mb_s_hour: _Price = 0.0
    burst_gb: _Price = 0.0
    """Surcharge per 10^9 bytes moved above `burst_above` times the payer's mean rate of that hour."""

    def _expected_together(self) -> str | None:
        free = not any(getattr(self, name) for name in Prices.model_fields)
        return f"at least one price above 0: {', '.join(Prices.model_fields)}" if free else None


class PriceModel(Section):
    """A whole price model."""

    currency: Annotated[str, text("a name such as EUR")] = setting(..., "A name such as EUR.")
    payer: Literal["user", "client_id", "namespace", "team"] = "user"
    burst_above: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = 2.0
    prices: Prices = setting(..., "What things cost.")


def expression(pattern: str) -> str:
    """A pattern with `*` (any characters) and `?` (one) as a regular expression for Java and Python."""
    parts = {"*": "(?s:.*)", "?": "(?s:.)"}
    return "".join(parts.get(one, re.escape(one) if not one.isalnum() else one) for one in pattern)


def load(model: type[_Model], option: str, path: str | Path) -> _Model:
    """Read and check the file of an option. Raises WrongUseError: the place, the value and what was expected."""
    try:
        return validate(model, parse(str(path), Path(path).read_bytes()))
    except OSError as error:
        raise WrongUseError(f"{option} {path}: cannot be read: {error.strerror or error}") from None
    except ConfigError as error:
        raise WrongUseError("\n".join(f"{option} {problem}" for problem in error.problems)) from None
