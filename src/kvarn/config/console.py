"""Settings of the console."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from kvarn.config.section import Section

_Text = Annotated[str, Field(min_length=1)]


class OidcConfig(Section):
    """Identity provider (OpenID Connect) with which people sign in to the console. Its redirect address is
    `/console/api/oidc/callback` below `console.url`."""

    name: str = Field("single sign-on", min_length=1, max_length=80)
    """Name of the provider on the sign-in page."""

    issuer: str = Field(pattern=r"^https?://[^?#\s]+$")
    """Address of the provider: `/.well-known/openid-configuration` below it describes it. `http` only on loopback."""

    client_id: _Text
    """Name of this server at the provider."""

    client_secret: str | None = Field(None, min_length=1, repr=False)
    """Secret of this server at the provider. Better: `client_secret_file`."""

    client_secret_file: _Text | None = None
    """File with the secret, read at the start."""

    scopes: tuple[_Text, ...] = ("openid", "email", "profile")
    """Scopes that are asked for; `openid` and one that has the address must be among them."""

    allowed_domains: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")], ...] = ()
    """Domains of addresses, in lower case. With any, people of others are refused, and those who are no users yet
    become users when they first sign in. Default: only those sign in who are users of the organisation already."""

    require_verified_email: bool = True
    """Refuse addresses that the provider does not call verified (`email_verified`). Switch it off only for a provider
    whose administrator sets all addresses, and that leaves the claim out."""

    organization: _Text = "org-default"
    """Id of the organisation that people belong to. Administrators of `org-default` are the platform's."""

    organization_claim: _Text | None = None
    """Claim that names the organisation, by `organizations`; others are refused. Default: `organization` for all."""

    organizations: dict[str, str] = Field(default_factory=dict)
    """Ids of organisations by a value of `organization_claim`."""

    project: _Text | None = None
    """Id of the project that new users join. Default: the organisation's first."""

    role_claim: _Text | None = None
    """Claim that decides the role, such as `groups`, at each sign-in. Default: the role that the user has here; new
    users are members."""

    admin_values: tuple[_Text, ...] = ()
    """Values of `role_claim` that make an administrator; all others make a member."""

    clock_skew_s: float = Field(60.0, ge=0, le=600)
    """Seconds by which the provider's clock may differ."""

    timeout_s: float = Field(10.0, gt=0, le=120)
    """Seconds that an answer of the provider may take."""

    @model_validator(mode="after")
    def _is_whole(self) -> OidcConfig:
        if (self.client_secret is None) == (self.client_secret_file is None):
            raise ValueError("set one of client_secret_file and client_secret")
        if (self.organization_claim is None) != (not self.organizations):
            raise ValueError("organization_claim and organizations go together: set both or none")
        if self.role_claim is None and self.admin_values:
            raise ValueError("admin_values are values of role_claim: name that claim")
        return self


class ConsoleConfig(Section):
    """Console in the browser, at `/console`. See docs/operate/console.md."""

    enabled: bool = True
    """Serve the console and its data."""

    url: str | None = Field(None, pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")
    """Address under which browsers reach the server, such as `https://llm.example.com` or, below a prefix,
    `https://example.com/llm`: needed behind a proxy that ends TLS or changes `Host`, so that cookies are marked as
    secure and providers lead back here. Default: as browsers ask for it."""

    session_hours: float = Field(12.0, gt=0, le=720)
    """Hours after which who signed in to the console signs in again."""

    oidc: OidcConfig | None = None
    """Sign-in of people at an identity provider. Default: with API keys only. Needs the extra `oidc`."""
