"""Views of stores: the rows that one search may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.segment import Segment
from kvarn.store.repositories.chunks import FileState, StoreState

MayRead = Callable[[FileState], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """An index of a store at one revision. `alive`: the rows of each segment that are of the files as they are now."""

    state: StoreState
    files: Mapping[str, FileState]
    segments: Sequence[Segment]
    alive: Sequence[Array]

    @property
    def chunks(self) -> int:
        """Chunks that its files have."""
        return sum(each.chunks for each in self.files.values())

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The rows of a segment that a search may see; `is_whole`: all of them."""

    segment: Segment
    visible: Array  # bool [n]
    is_whole: bool

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.visible))


@dataclass(frozen=True, slots=True, eq=False)
class StoreView:
    """Part of a store that a search may see. `files`: ids of its files; None: all of the store."""

    snapshot: Snapshot
    views: Sequence[View]
    files: frozenset[str] | None


def view_of(snapshot: Snapshot, may_read: MayRead | None) -> StoreView:
    """The rows of a store that a search may see; `may_read` decides by file, None: all."""
    files = None
    if may_read is not None:
        allowed = frozenset(name for name, file in snapshot.files.items() if may_read(file))
        files = None if len(allowed) == len(snapshot.files) else allowed
    views = []
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        visible = alive
        if files is not None:
            readable = np.fromiter((each.file_id in files for each in segment.files), bool, count=len(segment.files))
            visible = alive & readable[segment.file_of]
        views.append(View(segment, visible, bool(visible.all())))
    return StoreView(snapshot, [view for view in views if view.is_whole or view.visible.any()], files)
