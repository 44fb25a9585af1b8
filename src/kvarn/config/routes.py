"""Settings of model choice: which model answers requests for a name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvarn.config.section import Section

ModelName = Annotated[str, Field(min_length=1)]
FallbackReason = Literal["overload", "not_ready", "error", "timeout"]
_ALL_REASONS: tuple[FallbackReason, ...] = ("overload", "not_ready", "error", "timeout")


class FallbackConfig(Section):
    """A model that answers in the place of another, which could not begin."""

    model: ModelName
    """Name of a served model."""

    on: tuple[FallbackReason, ...] = Field(_ALL_REASONS, min_length=1)
    """Conditions for the fallback: `overload` (the model would answer too late), `not_ready`, `error` (it was lost, or
    its server failed), `timeout`. Only before the first token of an answer."""


class TargetConfig(Section):
    """A model that answers part of the requests."""

    model: ModelName
    """Name of a served model, or `model:adapter`."""

    weight: float = Field(1.0, ge=0)
    """Its part of the requests, relative to the other targets'."""


class PinConfig(Section):
    """A tenant that always gets the same model."""

    organization: str | None = Field(None, min_length=1)
    """Id of an organisation."""

    project: str | None = Field(None, min_length=1)
    """Id of a project; goes before its organisation's pin."""

    key: str | None = Field(None, min_length=1)
    """Id of an API key; goes before its project's pin."""

    model: ModelName
    """Name of the model that answers."""

    @model_validator(mode="after")
    def _names_one(self) -> PinConfig:
        if sum(each is not None for each in (self.organization, self.project, self.key)) != 1:
            raise ValueError("a pin names one of `organization`, `project` and `key`")
        return self


class RuleConfig(Section):
    """Sends requests of a certain kind to a model, such as short ones to a small model. All that is set must hold."""

    model: ModelName
    """Name of the model that answers them."""

    max_prompt_tokens: int | None = Field(None, ge=1)
    """The prompt has no more tokens than this; estimated from its length (four bytes a token)."""

    max_output_tokens: int | None = Field(None, ge=1)
    """The request allows its answer no more tokens than this."""

    batch: bool | None = None
    """The request runs in the batch tier (it is a line of a batch, or has the priority 10), or in a better one."""

    tools: bool | None = None
    """The request has tools, or has none."""

    reasoning_effort: tuple[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"], ...] | None = None
    """The request's reasoning effort is one of these. One that says nothing is `medium`."""

    predicted_ttft_above_s: float | None = Field(None, gt=0)
    """The model that would answer otherwise is predicted to take longer than this to the first token. Seconds."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> RuleConfig:
        if not self.model_fields_set - {"model"}:
            raise ValueError("a rule without a condition: use `targets` for what always holds")
        return self


class ShadowConfig(Section):
    """A model that is tried out: it gets copies of requests, in the background and with the lowest priority, once their
    answers are finished. Its own answers are compared, measured and dropped, and cost nothing."""

    model: ModelName
    """Name of the model that gets the copies."""

    share: float = Field(0.01, gt=0, le=1)
    """Part of the requests that are copied."""

    max_in_flight: int = Field(4, ge=1)
    """Copies under way at once at most, in each gateway process; what comes beyond is not copied."""


class RouteConfig(Section):
    """A name that clients use in the `model` field, and what answers it. See docs/guides/model_choice.md."""

    name: ModelName
    """The name. Keys whose scope has it may use its targets by it."""

    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    """The models that share the requests."""

    sticky: Literal["user", "session", "key", "project", "request"] = "user"
    """Requests that stay with the same target: those of one `user` field (or `safety_identifier`), of one session
    (docs/guides/sessions.md), of one API key, of one project; `request`: each on its own. A request
    without a session counts by its user, else by its key, else by its project."""

    pins: tuple[PinConfig, ...] = ()
    """Tenants that always get the same model; pins go before all rules."""

    rules: tuple[RuleConfig, ...] = ()
    """The first that holds decides, before the weights do."""

    shadow: ShadowConfig | None = None
    """Copies requests to a model that is tried out. Default: none."""

    fallback: tuple[FallbackConfig, ...] = ()
    """Models that answer when the chosen one cannot, in this order; after that model's own `fallback`."""

    @model_validator(mode="after")
    def _agree(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError(f"all targets of {self.name!r} have the weight 0")
        names = [target.model for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError(f"the route {self.name!r} names a target twice")
        holders = [(pin.organization, pin.project, pin.key) for pin in self.pins]
        if len(set(holders)) < len(holders):
            raise ValueError(f"the route {self.name!r} pins the same organization, project or key twice")
        return self

    @property
    def models(self) -> tuple[str, ...]:
        shadow = () if self.shadow is None else (self.shadow,)
        parts = (*self.targets, *self.pins, *self.rules, *shadow, *self.fallback)
        return tuple(dict.fromkeys(part.model for part in parts))
