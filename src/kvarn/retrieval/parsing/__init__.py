"""Files of documents, read in a sandbox: text and its blocks.

parse.py ──file, format──> child.py (in bubblewrap) ──Parsed | Unreadable──> parse.py ──> Document
"""
