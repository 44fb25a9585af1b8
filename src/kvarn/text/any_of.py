"""A regular expression for many texts at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def any_of(texts: Iterable[str]) -> str:
    """A pattern that finds the longest of some texts. Those that begin alike share their beginning: a search among
    thousands (`<unused0>` to `<unused6241>`) looks at each character of the text once."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    straight = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        straight += re.escape(character)
    branches = [re.escape(character) + _pattern(child) for character, child in node.items() if character]
    if not branches:
        return straight
    return f"{straight}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
