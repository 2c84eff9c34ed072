"""Settings of identity: where the user of a connection comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from config.types import choice, text, wrong

_SOURCES = ("tls", "sasl", "static")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SaslIdentity(_Model):
    """How the user is found in a login by SASL that the broker has accepted (docs/identity.md)."""

    oauthbearer_claim: Annotated[str, text("the name of a claim")] = Field(
        default="sub",
        description="The claim of OAUTHBEARER's tokens that is the user, as the brokers' "
        "sasl.oauthbearer.sub.claim.name.",
    )
    unknown_user: Annotated[str, text("a user name")] | None = Field(
        default=None,
        description="The user of logins that do not show their name: GSSAPI, opaque tokens, delegation tokens of "
        "unknown owners. null: the next source is asked.",
    )


class Identity(_Model):
    """Where the user of a connection comes from; the first source that knows one wins, else ANONYMOUS."""

    sources: list[Annotated[str, choice("a source of identity", *_SOURCES)]] = Field(
        default_factory=lambda: list(_SOURCES),
        description="In this order. tls is not observed by this version.",
    )
    static: Annotated[str, text("a user name")] | None = Field(
        default=None, description="The user of every connection for which no source before it knows one."
    )
    sasl: SaslIdentity = Field(default_factory=SaslIdentity, description="How logins by SASL are read.")

    @field_validator("sources")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise wrong("each source once")
        return value
