"""Served models, as Ollama names and describes them: names have a tag."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from kvarn.answers.context import ServingContext
from kvarn.catalog.models import ServedModel
from kvarn.wire.messages import ModelCard
from kvarn.wire.ollama.answers import Details, ListedModel, ShowAnswer
from kvarn.wire.openai.models import Model

NEVER = datetime(9999, 12, 31, tzinfo=UTC)

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
_LATEST = ":latest"
_LEVELS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_OPTIONS = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


def served_name(serving: ServingContext, name: str) -> str:
    """The name of what is served, for a name that may end in the tag Ollama adds where there is none."""
    plain = name.removesuffix(_LATEST) or name
    is_own = serving.catalog.routes.find(name) is not None or serving.models.named(name) is not None
    return name if is_own or serving.models.find_adapter(name) is not None else plain


def shown_name(name: str) -> str:
    """The name with a tag: clients compare names so."""
    return name if ":" in name else name + _LATEST


def listed(model: Model, served: ServedModel) -> ListedModel:
    name, card = shown_name(model.id), served.card
    return ListedModel(
        name=name,
        model=name,
        modified_at=datetime.fromtimestamp(model.created, UTC),
        size=_size(card),
        digest=_digest(model, served),
        details=_details(model, card),
        capabilities=capabilities(served),
    )


def running(model: Model, served: ServedModel) -> ListedModel:
    name, size = shown_name(model.id), _size(served.card)
    return ListedModel(
        name=name,
        model=name,
        size=size,
        digest=_digest(model, served),
        details=_details(model, served.card),
        expires_at=NEVER,
        size_vram=size if served.card is not None and served.card.kernels == "triton" else 0,
        context_length=model.max_model_len or 0,
    )


def shown(model: Model, served: ServedModel) -> ShowAnswer:
    card, text = served.card, served.text
    family = _family(card)
    info: dict[str, Any] = {"general.architecture": family, "general.basename": model.id}
    if card is not None:
        info |= {
            "general.parameter_count": card.num_parameters,
            f"{family}.context_length": card.max_context_length,
            f"{family}.vocab_size": card.vocab_size,
        }
        if card.embedding_size:
            info[f"{family}.embedding_length"] = card.embedding_size
    defaults = {} if text is None else asdict(text.sampling_defaults)
    return ShowAnswer(
        details=_details(model, card),
        model_info=info,
        capabilities=capabilities(served),
        modified_at=datetime.fromtimestamp(model.created, UTC),
        modelfile=f"# This model is served by Kvarn from a checkpoint; there is no Modelfile.\nFROM {model.id}\n",
        parameters="\n".join(
            f"{_OPTIONS.get(name, name)} {value}" for name, value in defaults.items() if value is not None
        ),
        template="" if text is None else text.chat_template.source,
    )


def capabilities(served: ServedModel) -> list[str]:
    card, text = served.card, served.text
    if card is not None and card.kind != "generate":
        return ["embedding"]
    found = ["completion"]
    if text is None or re.search(r"\btools\b", text.chat_template.source):
        found.append("tools")
    if text is not None and text.reasoning_format is not None:
        found.append("thinking")
    return found


def _details(model: Model, card: ModelCard | None) -> Details:
    family = _family(card)
    return Details(
        family=family,
        families=[family],
        parameter_size="" if card is None else _parameters(card.num_parameters),
        quantization_level="" if card is None else _level(card),
        parent_model=model.parent or "",
        context_length=model.max_model_len or 0,
        embedding_length=0 if card is None else card.embedding_size,
    )


def _family(card: ModelCard | None) -> str:
    """The architecture without what it is for: `LlamaForCausalLM` is `llama`."""
    return "" if card is None else re.sub(r"(For[A-Z]\w*|Model)$", "", card.architecture).lower()


def _level(card: ModelCard) -> str:
    """Ollama's name of the form of the weights."""
    return (card.quantization or _LEVELS.get(card.dtype, card.dtype)).upper()


def _parameters(count: int) -> str:
    unit, letter = next((each for each in ((10**9, "B"), (10**6, "M"), (10**3, "K")) if count >= each[0]), (1, ""))
    return f"{count / unit:.3g}{letter}"


def _size(card: ModelCard | None) -> int:
    """Bytes of the weights, about."""
    if card is None:
        return 0
    return int(card.num_parameters * _BYTES.get(card.quantization, _BYTES.get(card.dtype, 2.0)))


def _digest(model: Model, served: ServedModel) -> str:
    version = "" if served.text is None else served.text.version
    return sha256(f"{model.id}/{version}".encode()).hexdigest()
