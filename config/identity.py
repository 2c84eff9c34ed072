"""Settings of identity: which sources determine the user of a connection, and what the static one says."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from config.types import ABSOLUTE_PATH, Section, Value, choice, text, wrong

SOURCES: Final = ("tls", "sasl", "static")
FIELDS: Final = ("namespace", "service_account", "pod")
_USER = text("a user name")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


def template_fields(template: str) -> list[str]:
    """The fields in braces, in order."""
    return _FIELD.findall(template)


def _template(value: Any) -> str:
    expected = f"text with {', '.join(f'{{{name}}}' for name in FIELDS)} or {{label:KEY}} in it"
    if not isinstance(value, str) or not (fields := template_fields(value)):
        raise wrong(f'{expected}, such as "{{namespace}}/{{service_account}}"')
    for field in fields:
        if field not in FIELDS and not re.fullmatch(r"label:[A-Za-z0-9][A-Za-z0-9._/-]*", field):
            raise wrong(f"{expected}, not {{{field}}}")
    if "}{" in value:
        raise wrong("something between two braces, such as /: without it two pods could make one and the same name")
    if "{" in _FIELD.sub("", value) or "}" in _FIELD.sub("", value):
        raise wrong(f"{expected}; unbalanced braces")
    return value


class StaticIdentity(Section):
    """The user of every connection: written down here, or in files that the workload cannot write."""

    user: Annotated[str, _USER] | None = Field(default=None, description="The user.")
    file: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None, description="A file whose only line is the user; re-read when it changes."
    )
    template: Annotated[str, Value(_template, {"type": "string", "pattern": r"\{.+\}"})] | None = Field(
        default=None,
        description="The user, with {namespace}, {service_account}, {pod} and {label:KEY} from `directory`.",
    )
    directory: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None,
        description="With template: a volume of the downward API with the files namespace, service_account, pod, "
        "labels or token; re-read when they change.",
    )

    @model_validator(mode="before")
    @classmethod
    def _text_means_user(cls, value: Any) -> Any:
        if isinstance(value, dict | StaticIdentity):
            return value
        return {"user": _USER.check(value)}

    @model_validator(mode="after")
    def _one_of_them(self) -> StaticIdentity:
        if sum(one is not None for one in (self.user, self.file, self.template)) != 1:
            raise wrong("exactly one of user, file and template")
        if (self.template is None) != (self.directory is None):
            raise wrong("template and directory, both or neither")
        return self


class _TextOrMapping:
    """Metadata of `identity.static`: its JSON schema allows the user's name alone."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [dict(_USER.schema), dict(handler(schema))]}


class SaslIdentity(Section):
    """How the user is found in a login by SASL that the broker has accepted (docs/identity.md)."""

    oauthbearer_claim: Annotated[str, text("the name of a claim")] = Field(
        default="sub",
        description="Claim of OAUTHBEARER tokens that is the user, as the brokers' sasl.oauthbearer.sub.claim.name.",
    )
    unknown_user: Annotated[str, text("a user name")] | None = Field(
        default=None,
        description="User of logins without a visible name (GSSAPI, opaque tokens, unknown delegation tokens); null: "
        "the next source.",
    )
    token_owners: dict[Annotated[str, text("a token id")], Annotated[str, text("a user name")]] = Field(
        default_factory=dict,
        description="Owners of delegation tokens by token id. With upstream.sasl the cluster is asked for others.",
    )


class IdentitySection(Section):
    """Where the user of a connection comes from; the first source that knows one wins, else ANONYMOUS."""

    sources: list[Annotated[str, choice("a source of identity", *SOURCES)]] = Field(
        default_factory=lambda: list(SOURCES),
        description="Sources of a connection's user, in this order: certificate, SASL login, static user.",
    )
    static: Annotated[StaticIdentity, _TextOrMapping()] | None = Field(
        default=None,
        description="User name of connections without another source, or a mapping to read it from files; null: "
        "ANONYMOUS.",
    )

    sasl: SaslIdentity = Field(default_factory=SaslIdentity, description="How names are read from SASL logins.")

    @field_validator("sources")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise wrong("each source once")
        return value

    @property
    def static_user(self) -> str | None:
        """The static user as far as this file defines it: None without one, or if other files define it."""
        return self.static.user if self.static is not None and "static" in self.sources else None

    @property
    def static_elsewhere(self) -> bool:
        """Other files define the static user."""
        return self.static is not None and self.static.user is None and "static" in self.sources
