"""Messages from engines to gateway processes about the blocks that they cache."""

from __future__ import annotations

from kvarn.wire.message import Message

NAME_BYTES = 8
"""First bytes of a block's name (`kvarn.wire.block_names`) that are told: enough to choose a replica. No block is read
by this name, so two that begin alike cost a request some time, at worst."""


class WatchBlocks(Message, frozen=True, kw_only=True):
    """Tell a gateway process all blocks that the prefix cache holds and, from then on, what changes (`BlockEvents`)."""

    gateway: int
    wanted: bool = True  # False: tell it no more


class BlockEvents(Message, frozen=True, kw_only=True):
    """Blocks that the prefix cache has stored and removed, in any order: no block is in both.

    Blocks are the first 8 bytes of their names, one behind the other.
    """

    epoch: int  # of the engine process: another one numbers its events anew
    sequence: int  # of this gateway process's events, without gaps
    stored: bytes = b""
    removed: bytes = b""
    snapshot: bool = False  # forget what was told before: `stored` begins all that is cached
