"""A tiny Llama that says what it is told: its weights make each token be followed by one other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.support.small_vocabulary import byte_characters

CONTEXT = 8192
_HIDDEN = 512
_PULL = 0.15
"""Makes the logit of the token that follows 77, with others around 0 +- 4: sampling at any temperature finds it."""
_END, _PAD, _START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
_SHOWN = f"""
{{%- for message in messages -%}}
{{{{- '{_START}' + message.role + '\\n' + message.content + '{_END}\\n' -}}}}
{{%- endfor -%}}"""
_BY_NAME = (
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}"
    "{%- set name = users[-1].content.split(' ')[0] -%}"
)
_BY_RESULTS = """
{%- set results = messages | selectattr('role', 'equalto', 'tool') | list | length -%}
{%- set name = [results, LAST] | min if tools else LAST -%}"""


def write_scripted_checkpoint(
    directory: Path,
    turns: Mapping[str, str] | Sequence[str],
    *,
    marks: str = "<tool_call>",
    words: Sequence[str] = (),
    specials: Sequence[str] = (),
    sizes: Sequence[int] = (3, 2, 5, 1, 4),
    prefix: str = "",
    context: int = CONTEXT,
) -> dict[str, int]:
    """Write a checkpoint whose model says a chosen text, and return the ids of its added tokens.

    Args:
        directory: Made if absent; config.json, weights, tokenizer and chat template are written there.
        turns: By name, the answer where the first word of the last message of the user is that name. Or a sequence:
            a request with tools gets the turn whose number is the count of messages of the role `tool` so far (the
            last turn where there are more), and one without tools gets the last turn. The prompt then shows nothing
            of the conversation, so that any agent's fits.
        marks: Named in a comment of the template, which tells the format of tool calls and of reasoning.
        words: Added tokens that are not `special`. A turn that spells one out says the token.
        specials: Added tokens that are.
        sizes: Bytes of one token after another. No token is said twice, so some get longer.
        prefix: Written by the template before an answer begins.
        context: Tokens of the model's context.

    Raises:
        ValueError: A turn says an added token twice, with different texts after it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_name = dict(turns) if isinstance(turns, Mapping) else {str(n): turn for n, turn in enumerate(turns)}
    starts = {name: f"<|turn:{name}|>" for name in by_name}
    added = [_PAD, _START, _END, *specials, *words, *starts.values()]
    shown = byte_characters()
    vocabulary = {shown[byte]: byte for byte in range(256)}
    chains = []
    said: set[str] = set()
    for name, text in by_name.items():
        pieces = _tokens_of(text, [*specials, *words], sizes, said)
        for piece in pieces:
            if piece not in added:
                vocabulary.setdefault(piece, len(vocabulary))
        chains.append([starts[name], *pieces, _END])
    ids = {token: len(vocabulary) + place for place, token in enumerate(added)}
    _write_model(directory, [[(vocabulary | ids)[token] for token in chain] for chain in chains], ids, context)
    _write_tokenizer(directory, vocabulary, ids, words)
    choice = _BY_NAME if isinstance(turns, Mapping) else _BY_RESULTS.replace("LAST", str(len(turns) - 1))
    template = (
        f"{{# {marks} #}}{_SHOWN if isinstance(turns, Mapping) else ''}{{%- if add_generation_prompt -%}}{choice}"
    )
    opening = f"{_START}assistant\n{prefix}"
    template += f"{{{{- {opening!r} ~ '<|turn:' ~ name ~ '|>' -}}}}{{%- endif -%}}"
    settings = {"eos_token": _END, "pad_token": _PAD, "model_max_length": context, "chat_template": template}
    _write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    return ids


def _tokens_of(text: str, added: Iterable[str], sizes: Sequence[int], said: set[str]) -> list[str]:
    """The tokens of a text, as tokenizer.json shows them; those said before are in `said`."""
    pattern = "|".join(re.escape(token) for token in sorted(added, key=len, reverse=True))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    tokens: list[str] = []
    for place, part in enumerate(parts):
        tokens += [part] if place % 2 else _cut(part.encode(), sizes, said)
    return tokens


def _cut(raw: bytes, sizes: Sequence[int], said: set[str]) -> list[str]:
    shown = byte_characters()
    text = "".join(shown[byte] for byte in raw)
    pieces: list[str] = []
    while text:
        size = sizes[len(said) % len(sizes)]
        while size < len(text) and text[:size] in said:
            size += 1
        piece, text = text[:size], text[size:]
        while piece in said:  # at the end
            if not pieces:
                raise ValueError(f"{piece!r} is said twice: let the turns differ.")
            said.discard(pieces[-1])
            piece = pieces.pop() + piece
        said.add(piece)
        pieces.append(piece)
    return pieces


def _write_model(directory: Path, chains: Sequence[Sequence[int]], ids: Mapping[str, int], context: int) -> None:
    size = max(ids.values()) + 1
    torch.manual_seed(0)
    embedding = torch.randint(0, 2, (size, _HIDDEN)).float() * 2 - 1
    head = torch.zeros(size, _HIDDEN)
    following: dict[int, int] = {}
    for chain in chains:
        for token, after in pairwise(chain):
            if token not in following:
                head[after] += embedding[token] * _PULL
            if following.setdefault(token, after) != after:
                raise ValueError(f"Token {token} is followed by two others.")
    layer = {
        "input_layernorm": torch.ones(_HIDDEN),
        "post_attention_layernorm": torch.ones(_HIDDEN),
        **{f"self_attn.{part}_proj": torch.zeros(_HIDDEN, _HIDDEN) for part in "qkvo"},
        **{f"mlp.{part}_proj": torch.zeros(8, _HIDDEN) for part in ("gate", "up")},
        "mlp.down_proj": torch.zeros(_HIDDEN, 8),
    }
    weights = {"model.embed_tokens": embedding, "lm_head": head, "model.norm": torch.ones(_HIDDEN)}
    weights |= {f"model.layers.0.{name}": weight for name, weight in layer.items()}
    tensors = {f"{name}.weight": weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": size,
        "hidden_size": _HIDDEN,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": ids[_END],
    }
    _write_json(directory / "config.json", config)


def _write_tokenizer(
    directory: Path, vocabulary: Mapping[str, int], ids: Mapping[str, int], words: Sequence[str]
) -> None:
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": token_id, "content": token, "special": token not in words, **flags}
            for token, token_id in ids.items()
        ],
        "pre_tokenizer": split,
        "decoder": split,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    _write_json(directory / "tokenizer.json", tokenizer)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))
