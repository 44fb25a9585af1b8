"""The true bytes of a token, whatever way its tokenizer writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def byte_level_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level BPE (GPT-2, Radford et al. 2019): bytes that print in
    Latin-1 stand for themselves; the others, in order, take the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def token_bytes_reader(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """A function from a token as the vocabulary writes it to its bytes, by the `decoder` part of tokenizer.json:
    byte-level, byte fallback with metaspace, WordPiece, or plain."""
    kinds = {part.get("type") for part in _parts(decoder)}
    if "ByteLevel" in kinds:
        alphabet = byte_level_alphabet()
        return lambda token: _from_alphabet(token, alphabet)
    spaces = [part.get("replacement", "▁") for part in _parts(decoder) if part.get("type") == "Metaspace"]
    spaces += [
        part["pattern"]["String"]
        for part in _parts(decoder)
        if part.get("type") == "Replace" and part.get("content") == " " and "String" in part.get("pattern", {})
    ]
    byte_tokens = byte_fallback_tokens(decoder)

    def read(token: str) -> bytes:
        if token in byte_tokens:
            return bytes([byte_tokens[token]])
        for space in spaces:
            token = token.replace(space, " ")
        return token.encode()

    return read


def is_pure_byte_level(decoder: dict[str, Any] | None) -> bool:
    """Whether a text's bytes are its tokens' bytes, one after another, with nothing stripped or put between."""
    kinds = [part.get("type") for part in _parts(decoder)]
    return "ByteLevel" in kinds and all(kind in ("ByteLevel", "Fuse") for kind in kinds)


def byte_fallback_tokens(decoder: dict[str, Any] | None) -> dict[str, int]:
    """The tokens `<0x00>` to `<0xFF>` and their bytes; none where the decoder takes them for text."""
    if not any(part.get("type") == "ByteFallback" for part in _parts(decoder)):
        return {}
    return {form: byte for byte in range(256) for form in (f"<0x{byte:02X}>", f"<0x{byte:02x}>")}


def _from_alphabet(token: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()  # an added token, written as it reads


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [leaf for part in decoder.get("decoders", []) for leaf in _parts(part)]
    return [decoder]
