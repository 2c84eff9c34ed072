"""Settings of the sidecar's own login at the cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from config.types import ABSOLUTE_PATH, Section, choice, text, wrong

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class UpstreamSasl(Section):
    """The sidecar's own login, for its own questions: clients' logins pass through as they are."""

    mechanism: Annotated[str, choice("a mechanism", *_MECHANISMS)] = Field(description="SASL mechanism.")
    username: Annotated[str, text("a user name")] | None = Field(
        default=None, description="The user; not with OAUTHBEARER."
    )
    password_file: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None, description="File with the password, re-read at every login."
    )
    token_file: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None, description="With OAUTHBEARER, the file with the token, re-read at every login."
    )

    @model_validator(mode="after")
    def _fits_the_mechanism(self) -> UpstreamSasl:
        if self.mechanism == "OAUTHBEARER":
            if self.token_file is None or self.username is not None or self.password_file is not None:
                raise wrong("a token_file with OAUTHBEARER, and neither username nor password_file")
        elif self.username is None or self.password_file is None or self.token_file is not None:
            raise wrong(f"username and password_file with {self.mechanism}, and no token_file")
        return self
