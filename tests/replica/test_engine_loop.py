"""The order in which an engine's loop does what is asked of it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from kvarn.replica.server.loop import EngineLoop
from kvarn.wire.messages import Stop
from kvarn.wire.questions import Ask, AskKVMap


class Rig:
    """A loop whose other parts note, in order, what it has them do. Stops after `steps` steps."""

    def __init__(self, steps: int, messages: list[Any]) -> None:
        self.done: list[str] = []
        self.waits: list[float] = []
        self.joined = {0}
        self.block_places: list[Any] = []
        self.draining = False
        self._steps, self._messages = steps, messages
        self.loop = EngineLoop(self, self, self, self, None)  # type: ignore[arg-type]

    def has_work(self) -> bool:
        return True

    def receive(self, wait_s: float) -> list[Any]:
        self.waits.append(wait_s)
        came, self._messages = self._messages, []
        return came if self._steps else [Stop()]

    def step(self) -> list[Any]:
        self.done.append("step")
        self._steps -= 1
        return []

    def in_step(self) -> Any:
        return nullcontext()

    def answer(self, question: Any) -> bytes:
        self.done.append("answer")
        return b""

    def stats(self) -> None:
        return None

    def send(self, message: Any) -> None:
        return None

    def tell(self, gateway: int, message: Any) -> bool:
        return True


def test_between_two_steps_at_most_one_question_is_answered():
    rig = Rig(4, [Ask(number=number, gateway=number % 2, question=AskKVMap()) for number in range(5)])
    rig.loop.run()
    assert rig.done == ["answer", "step", "step", "answer", "step", "step", "answer"], "gateway 1 is gone"
    assert rig.waits[:5] == [0.0] * 5, "nothing is waited for while somebody asks"
