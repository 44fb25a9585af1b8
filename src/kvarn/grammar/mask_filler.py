"""Fills masks on threads of its own, while the step that draws with them runs its forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import (
    allocate_token_bitmask,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)

_CAPACITY = 512
"""Masks filled in one go at most; at 128k tokens they are 8 MB."""


class Fill:
    """The masks of a matcher's next token, and of those behind each of some proposals. The matcher belongs to the
    filler until `wait` returns, and comes back as it is.

    `added`: [words] int32 mask of tokens allowed besides, in the first mask. `fail` is called with the problem where no
    mask can be made; the masks are then `instead`.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        proposals: list[int],
        added: npt.NDArray[np.int32] | None,
        fail: Callable[[str], None],
        instead: npt.NDArray[np.int32],
    ) -> None:
        self.matcher = matcher
        self.proposals = proposals
        self._added = added
        self._fail = fail
        self._instead = instead
        self._masks = np.empty((0, 0), dtype=np.int32)
        self._filled = threading.Event()

    def __len__(self) -> int:
        return len(self.proposals) + 1

    def __getitem__(self, position: int) -> memoryview:
        self.wait()
        return memoryview(self._masks[position])

    def wait(self) -> None:
        self._filled.wait()

    def take(self, masks: npt.NDArray[np.int32]) -> None:
        problem = self.matcher.get_error() if self.matcher.is_error() else None
        if problem is None and not masks[0].any():
            problem = "no token of the vocabulary can follow"
        self.settle(masks, problem)

    def settle(self, masks: npt.NDArray[np.int32], problem: str | None) -> None:
        if problem is not None:
            self._fail(problem)
            masks = np.tile(self._instead, (len(self), 1))
        elif self._added is not None:
            masks[0] |= self._added
        self._masks = masks
        self._filled.set()


class MaskFiller:
    """One thread that takes what is waiting and fills it at once, in parallel."""

    def __init__(self, vocab_size: int, num_threads: int) -> None:
        self._vocab_size = vocab_size
        self._executor = LLExecutor(num_threads)
        self._queue: SimpleQueue[Fill | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvarn-masks", daemon=True)
        self._thread.start()

    def submit(self, fill: Fill) -> None:
        self._queue.put(fill)

    def shutdown(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        going_on = True
        while going_on:
            fills: list[Fill] = []
            fill = self._queue.get()
            while True:
                if fill is None:
                    going_on = False
                else:
                    fills.append(fill)
                if fill is None or sum(len(each) for each in fills) >= _CAPACITY:
                    break
                try:
                    fill = self._queue.get_nowait()
                except Empty:
                    break
            self._fill(fills)

    def _fill(self, fills: list[Fill]) -> None:
        if not fills:
            return
        places = np.cumsum([0, *(len(each) for each in fills)]).tolist()
        masks = allocate_token_bitmask(places[-1], self._vocab_size)
        rows = [(each, place) for each, place in zip(fills, places, strict=False)]
        plain = [(each.matcher, place) for each, place in rows if not each.proposals]
        proposed = [(each.matcher, place, each.proposals) for each, place in rows if each.proposals]
        try:
            if plain:
                fill_next_token_bitmask_par(self._executor, plain, masks)
            if proposed:
                fill_next_token_bitmask_par_with_draft_tokens(self._executor, proposed, masks)
        except BaseException as error:  # a panic of the library included: the waiting step must get an error
            if len(fills) == 1:
                fills[0].settle(masks[:0], f"{type(error).__name__}: {error}")
            else:  # one by one, so that the others are not refused for it
                for each in fills:
                    self._fill([each])
            return
        for each, place in rows:
            each.take(masks[place : place + len(each)])
