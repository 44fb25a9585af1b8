"""HTML: the text that a reader sees, in blocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvarn.retrieval.parsing.outcome import BlockKind, Parsed, RefusedError, TextBuilder

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_HIDDEN = "script style noscript template head title svg math iframe object canvas select datalist"
_BLOCKS = (
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form header hgroup hr html legend main nav ol p section summary table tbody tfoot thead ul"
)
_HIDDEN_TAGS, _BLOCK_TAGS = frozenset(_HIDDEN.split()), frozenset(_BLOCKS.split())
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)


def parse_html(text: str, max_characters: int) -> Parsed:
    """Headings, paragraphs, items of lists, rows of tables and preformatted text, without what is hidden. Raises
    RefusedError."""
    try:
        from selectolax import lexbor
    except ImportError:
        needed = "Reading HTML needs the extra `retrieval`: pip install 'kvarn[retrieval]'."
        raise RefusedError(needed, "server_error") from None
    tree = lexbor.LexborHTMLParser(text)
    walk = _Walk(TextBuilder(max_characters))
    if tree.root is not None:
        walk.over(tree.root)
    title = tree.css_first("title")
    return walk.builder.build("html-1 lexbor", "" if title is None else " ".join((title.text() or "").split()))


class _Walk:
    """A walk over the tree, without recursion: a document may be a million elements deep."""

    def __init__(self, builder: TextBuilder) -> None:
        self.builder = builder
        self._text: list[str] = []
        self._kind: BlockKind = "paragraph"
        self._level = 0
        self._preformatted = 0
        self._row = 0

    def over(self, root: LexborNode) -> None:
        node: LexborNode | None = root
        while node is not None:
            inside = self._enter(node)
            below = node.first_child if inside else None
            if below is not None:
                node = below
                continue
            if inside:
                self._leave(node)
            while node is not None and node.next is None:
                node = node.parent
                if node is not None:
                    self._leave(node)
            node = None if node is None else node.next
        self._flush()

    def _enter(self, node: LexborNode) -> bool:
        """Whether to go on inside of the node."""
        tag = node.tag or ""
        if node.is_text_node:
            self._text.append(node.text_content or "")
            return False
        if not node.is_element_node:
            return bool(node.is_document_node)
        if tag in _HIDDEN_TAGS or _is_hidden(node):
            return False
        if tag == "br":
            self._text.append("\n" if not self._row else " ")
        elif tag in ("td", "th"):
            if self._text and "".join(self._text).strip():
                self._text.append(" | ")
        elif tag == "tr":
            self._flush()
            self._row += 1
            self._kind = "table"
        elif not self._row:
            self._enter_block(tag)
        elif tag in _BLOCK_TAGS or tag in _HEADINGS or tag == "li":
            self._text.append(" ")
        return True

    def _enter_block(self, tag: str) -> None:
        if tag in _HEADINGS:
            self._flush("heading", _HEADINGS[tag])
        elif tag == "li":
            self._flush("list_item")
        elif tag == "pre":
            self._flush("code")
            self._preformatted += 1
        elif tag in _BLOCK_TAGS:
            kind = self._kind if self._kind == "list_item" and not self._text else "paragraph"
            self._flush(kind)

    def _leave(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "tr" and self._row:
            self._row -= 1
            if not self._row:
                self._flush()
        elif not self._row and (tag in _BLOCK_TAGS or tag in _HEADINGS or tag in ("li", "pre")):
            self._flush()
            if tag == "pre" and self._preformatted:
                self._preformatted -= 1

    def _flush(self, kind: BlockKind = "paragraph", level: int = 0) -> None:
        """End the block that the text so far makes, and begin another."""
        text = "".join(self._text)
        if not self._preformatted:
            text = " ".join(text.split())
        self.builder.add(text.strip("\n"), self._kind, self._level)
        self._text = []
        self._kind, self._level = kind, level


def _is_hidden(node: LexborNode) -> bool:
    attributes = node.attributes
    if not attributes:
        return False
    return "hidden" in attributes or bool(_HIDING_STYLE.search(attributes.get("style") or ""))
