"""The fields of generation_config.json and tokenizer_config.json that Kvarn reads, validated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from kvarn.text.errors import CheckpointError
from kvarn.text.json_file import read_json, validate
from kvarn.text.local_path import local_path
from kvarn.text.sampling import SamplingDefaults

_MAX_ID = 2**31 - 1


def _as_list(value: object) -> object:
    ids = value if isinstance(value, list) else [value]
    if not all(type(token_id) is int and 0 <= token_id <= _MAX_ID for token_id in ids):
        raise PydanticCustomError("token_ids", "expected a token id (0 or more) or a list of them")
    return ids


EndTokens = Annotated[list[int], BeforeValidator(_as_list)]
"""`eos_token_id`: files hold one id or a list."""


class CheckpointFile(BaseModel):
    """Base of the JSON files of a checkpoint: types are not converted, numbers are finite, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


class GenerationConfig(CheckpointFile):
    """The fields of generation_config.json that Kvarn uses."""

    eos_token_id: EndTokens = Field([])
    do_sample: bool | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, ge=-1, le=_MAX_ID)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    max_new_tokens: int | None = Field(None, ge=1, le=_MAX_ID)

    @property
    def defaults(self) -> SamplingDefaults:
        """Default sampling parameters of requests. `do_sample: false` is greedy; an absent one is not, although
        transformers takes it for false: most files hold only end tokens, and say nothing about sampling."""
        plain = SamplingDefaults()
        temperature = 0.0 if self.do_sample is False else self.temperature
        return SamplingDefaults(
            temperature=plain.temperature if temperature is None else temperature,
            top_k=max(0, self.top_k or 0),
            top_p=self.top_p or plain.top_p,
            min_p=self.min_p or plain.min_p,
            repetition_penalty=self.repetition_penalty or plain.repetition_penalty,
            max_tokens=self.max_new_tokens,
        )


_WITHOUT_EFFECT: Mapping[str, object] = {
    **dict.fromkeys(("stop_strings", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"), 0),
    **dict.fromkeys(("typical_p", "guidance_scale", "num_beams", "encoder_repetition_penalty"), 1),
}
"""Fields by which transformers changes answers and Kvarn does not, with the value that changes nothing."""


def read_generation_config(directory: Path, setting: str = "auto") -> GenerationConfig:
    """The generation configuration of a checkpoint; empty where it has none. `setting`, the model's
    `generation_config`: `auto`, `none` (only end tokens are used), or the folder of another file. Raises
    CheckpointError."""
    own = setting in ("auto", "none")
    path = _generation_file(directory, setting)
    if not own and not path.is_file():
        raise CheckpointError(
            f"generation_config names {setting!r}, but there is no {path}: use auto, none or a folder."
        )
    found = validate(GenerationConfig, read_json(path), path)
    return GenerationConfig(eos_token_id=found.eos_token_id) if setting == "none" else found


def ignored_fields(directory: Path, setting: str = "auto") -> list[str]:
    """The fields of that file which would change answers and are not applied. Raises as `read_generation_config`."""
    if setting == "none":
        return []
    data = read_json(_generation_file(directory, setting))
    return [name for name, neutral in _WITHOUT_EFFECT.items() if data.get(name) not in (None, neutral, [], {})]


def _generation_file(directory: Path, setting: str) -> Path:
    return (directory if setting in ("auto", "none") else local_path(setting)) / "generation_config.json"


class _EndTokensOfModel(CheckpointFile):
    eos_token_id: EndTokens = Field([])


def read_end_tokens(directory: Path, setting: str = "auto") -> list[int]:
    """End tokens of the generation configuration, else of config.json. Raises as `read_generation_config`."""
    path = directory / "config.json"
    found = read_generation_config(directory, setting).eos_token_id
    return found or validate(_EndTokensOfModel, read_json(path), path).eos_token_id


class _Token(CheckpointFile):
    content: str


class _AddedToken(_Token):
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


class _NamedTemplate(CheckpointFile):
    name: str
    template: str


_NamedToken = str | _Token | None
_Tokens = list[str | _Token]


class _SpecialTokens(CheckpointFile):
    bos_token: _NamedToken = None  # templates write it
    eos_token: _NamedToken = None
    extra_special_tokens: _Tokens | dict[str, str | _Token] | None = None
    additional_special_tokens: _Tokens | None = None


class _TokenizerConfig(_SpecialTokens):
    model_max_length: float | None = None
    chat_template: str | list[_NamedTemplate] | None = None
    added_tokens_decoder: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], _AddedToken] | None = None


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """The content of a checkpoint's tokenizer_config.json, and in the absence of a list of added tokens what
    special_tokens_map.json says, as transformers reads them; empty where there is neither. Raises
    CheckpointError."""
    path = directory / "tokenizer_config.json"
    content = read_json(path)
    validate(_TokenizerConfig, content, path)
    if content.get("added_tokens_decoder") is None:
        path = directory / "special_tokens_map.json"
        named = read_json(path)
        validate(_SpecialTokens, named, path)
        content |= named
    return content


_TOKEN_IDS = TypeAdapter(dict[str, Annotated[int, Field(ge=0, le=_MAX_ID)]], config=ConfigDict(strict=True))


def read_added_tokens(directory: Path) -> dict[str, int]:
    path = directory / "added_tokens.json"
    content = read_json(path)
    try:
        return _TOKEN_IDS.validate_python(content)
    except ValidationError:
        raise CheckpointError(f"{path} should hold token ids by token.") from None
