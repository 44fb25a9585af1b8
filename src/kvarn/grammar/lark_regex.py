"""Lark grammars without recursion as regular expressions, for texts that stand in a JSON string."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Mapping

from kvarn.grammar.errors import GrammarError

_MAX_CHARS = 50_000
MAX_GRAMMAR_CHARS = 16_000
"""Largest size of all grammars of a request: twenty times those of agents. They are read on the event loop."""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\f]+|//[^\n]*)|(?P<newline>\r?\n)
    |(?P<define>[?!]{0,2}[A-Za-z_][A-Za-z0-9_]*(?:\.-?\d+)?[ \t]*:(?!:))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[imslux]*)
    |(?P<count>~[ \t]*[0-9]{1,9}(?:[ \t]*\.\.[ \t]*[0-9]{1,9})?(?![0-9]))|(?P<range>\.\.)
    |(?P<alias>->[ \t]*[A-Za-z_]\w*)
    |(?P<directive>%[^\n]*)|(?P<mark>[()\[\]|?*+])""",
    re.VERBOSE,
)
_COMMON = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}
"""Terminals that grammars import from Lark's own library."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_IMPORT = re.compile(r"%import\s+common\s*(?:\.\s*(\w+)(?:\s*->\s*(\w+))?|\(([\w\s,]+)\))\s*(?://.*)?$")

Token = tuple[str, str]


def regex_of_lark(grammar: str) -> str:
    """An expression for what the rule `start` matches. Raises GrammarError for what is no Lark grammar, what no
    regular expression can say (recursion, `%ignore`), and what is too large."""
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise GrammarError("it is too large")
    try:
        return _Expander(_definitions(grammar)).of("start", ())
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None


def _definitions(grammar: str) -> dict[str, list[Token] | str]:
    found: dict[str, list[Token] | str] = {}
    body: list[Token] = []
    position = 0
    while position < len(grammar):
        match = _TOKEN.match(grammar, position)
        if match is None:
            raise GrammarError(f"it is not understood at {grammar[position : position + 20]!r}")
        position = match.end()
        kind, text = str(match.lastgroup), match[0]
        if kind == "define":
            body = []
            found[text.lstrip("?!").rstrip(": \t").partition(".")[0]] = body
        elif kind == "directive":
            found |= _imported(text)
        elif kind not in ("space", "newline", "alias"):
            body.append((kind, text))
    return found


def _imported(directive: str) -> dict[str, list[Token] | str]:
    match = _IMPORT.match(directive.strip())
    if match is None:
        raise GrammarError(f"{directive.split()[0]} cannot be kept to here")
    names = (
        {match[2] or match[1]: match[1]} if match[1] else {name.strip(): name.strip() for name in match[3].split(",")}
    )
    unknown = [name for name in names.values() if name not in _COMMON]
    if unknown:
        raise GrammarError(f"common.{unknown[0]} is not known")
    return {ours: _COMMON[name] for ours, name in names.items()}


class _Expander:
    def __init__(self, definitions: Mapping[str, list[Token] | str]) -> None:
        self._definitions = definitions
        self._done: dict[str, str] = {}

    def of(self, name: str, within: tuple[str, ...]) -> str:
        if name in self._done:
            return self._done[name]
        if name in within:
            raise GrammarError(f"the rule {name!r} holds itself")
        body = self._definitions.get(name)
        if body is None:
            raise GrammarError(f"there is no rule {name!r}")
        if isinstance(body, str):
            made = body
        else:
            tokens = deque(body)
            made = self._choice(tokens, (*within, name))
            if tokens:
                raise GrammarError(f"{tokens[0][1]!r} is too much in the rule {name!r}")
        if len(made) > _MAX_CHARS:
            raise GrammarError("it is too large")
        self._done[name] = f"(?:{made})"
        return self._done[name]

    def _choice(self, tokens: deque[Token], within: tuple[str, ...]) -> str:
        branches = [self._sequence(tokens, within)]
        while tokens and tokens[0][1] == "|":
            tokens.popleft()
            branches.append(self._sequence(tokens, within))
        return "|".join(branches)

    def _sequence(self, tokens: deque[Token], within: tuple[str, ...]) -> str:
        parts: list[str] = []
        size = 0
        while tokens and tokens[0][1] not in ("|", ")", "]"):
            part = self._atom(tokens, within)
            repeats: list[str] = []
            while tokens and (tokens[0][0] == "count" or tokens[0][1] in ("?", "*", "+")):
                repeats.append(f"{_quantifier(tokens.popleft()[1])})")
            parts += ["(?:" * len(repeats), part, *repeats]
            size += 3 * len(repeats) + len(part) + sum(map(len, repeats))
            if size > _MAX_CHARS:
                raise GrammarError("it is too large")
        return "".join(parts)

    def _atom(self, tokens: deque[Token], within: tuple[str, ...]) -> str:
        kind, text = tokens.popleft()
        if text in ("(", "["):
            inner = self._choice(tokens, within)
            if not tokens or tokens.popleft()[1] != {"(": ")", "[": "]"}[text]:
                raise GrammarError(f"{text!r} has no end")
            return f"(?:{inner})" if text == "(" else f"(?:(?:{inner})?)"
        if kind == "name":
            return self.of(text, within)
        if kind == "regex":
            body, _, flags = text[1:].rpartition("/")
            body = body.replace("\\/", "/")
            return f"(?{flags}:{body})" if flags else f"(?:{body})"
        if kind == "string":
            if tokens and tokens[0][0] == "range":
                tokens.popleft()
                _, last = tokens.popleft() if tokens else ("", '""')
                return f"[{_quoted(_text(text))}-{_quoted(_text(last))}]"
            return f"(?{'i' if text.endswith('i') else ''}:{_quoted(_text(text))})"
        raise GrammarError(f"{text!r} is out of place")


def _quantifier(text: str) -> str:
    if not text.startswith("~"):
        return text
    low, _, high = text[1:].partition("..")
    return f"{{{int(low)},{int(high)}}}" if high else f"{{{int(low)}}}"


def _text(literal: str) -> str:
    try:
        value = ast.literal_eval(literal.removesuffix("i"))
    except (ValueError, SyntaxError):
        raise GrammarError(f"{literal} is no text") from None
    return str(value)


def _quoted(text: str) -> str:
    return _META.sub(lambda match: "\\" + match[0], text)
