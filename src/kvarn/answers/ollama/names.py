"""Names of models as Ollama writes them: with a tag."""

from __future__ import annotations

from kvarn.answers.context import ServingContext

_LATEST = ":latest"


def served_name(serving: ServingContext, name: str) -> str:
    """The name of what is served, for a name that may end in the tag Ollama adds where there is none."""
    plain = name.removesuffix(_LATEST) or name
    is_own = serving.catalog.routes.find(name) is not None or serving.models.named(name) is not None
    return name if is_own or serving.models.find_adapter(name) is not None else plain


def shown_name(name: str) -> str:
    """The name with a tag: clients compare names so."""
    return name if ":" in name else name + _LATEST
