"""A corpus with known answers: pages about things that do not exist, of some facts each, and questions that ask for one
fact in other words. A fact of another thing, or another fact of the thing, is no answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.retrieval.sets import JudgedSet, Page, Question, markdown_page

_STATED, _THINGS = 9, 4
"""Facts of a thing, things of a page."""

_KINDS = ("pump", "lathe", "ferry", "greenhouse", "library", "turbine", "kiln", "observatory", "scanner", "tramway")
_START = (
    "Vel",
    "Tor",
    "Ask",
    "Brim",
    "Cal",
    "Dov",
    "Eld",
    "Fen",
    "Gry",
    "Hol",
    "Ist",
    "Jor",
    "Kel",
    "Lum",
    "Mar",
    "Nor",
    "Orr",
)
_MIDDLE = ("mo", "ra", "vi", "da", "lin", "ta", "no", "ke", "sa", "bri")
_END = ("ra", "k", "th", "n", "dal", "vik", "s", "mir", "t", "ne")
_NAMES = (
    "Ada Lind",
    "Bo Ek",
    "Carla Voss",
    "Dmitri Hale",
    "Elin Moor",
    "Farid Noor",
    "Greta Ohm",
    "Hugo Pratt",
    "Ines Quill",
)


def _number(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randint(low, high))


def _one_of(*values: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(values)


_FACTS: tuple[tuple[str, Callable[[random.Random], str], tuple[str, ...]], ...] = (
    ("Defects of the {e} are repaired free of charge for {v} months after delivery.", _number(6, 60),
     ("how long is the warranty on the {e}", "guarantee period {e}")),
    ("It weighs {v} kilograms without its packaging.", _number(40, 4000), ("how heavy is the {e}", "{e} mass")),
    ("The {e} admits visitors from {v} o'clock in the morning.", _number(6, 11),
     ("when does the {e} open", "opening time of the {e}")),
    ("Complaints about the {e} are answered by {v}.", _one_of(*_NAMES),
     ("who is responsible if something is wrong with the {e}", "contact person for problems with the {e}")),
    ("A filter lasts {v} days of ordinary use, and is then thrown away.", _number(20, 400),
     ("how often must I replace the filter of the {e}", "{e} filter change interval")),
    ("It was built in {v} and has been extended twice.", _number(1890, 2020),
     ("how old is the {e}", "year of construction {e}")),
    ("The {e} draws {v} watts when it idles.", _number(5, 900),
     ("standby power consumption of the {e}", "how much electricity does the {e} use when nothing happens")),
    ("Two people can carry the {e} up a stair that is at least {v} centimetres wide.", _number(70, 160),
     ("minimum stairway size to get the {e} upstairs", "will the {e} fit up narrow steps")),
    ("Its cover is painted {v}, so that it is seen from afar.", _one_of("black", "blue", "white", "red", "lime"),
     ("what colour is the {e}", "{e} paint")),
    ("Water above {v} degrees damages the seals.", _number(35, 95),
     ("maximum temperature the {e} tolerates", "how hot may the liquid in the {e} get")),
    ("Spare parts come from {v}, mostly within a week.", _one_of("Lisbon", "Turku", "Graz", "Gdansk", "Malmö", "Brno"),
     ("where are replacement components for the {e} shipped from", "which city supplies {e} parts")),
    ("A licence is needed to operate the {e}; it costs {v} crowns a year.", _number(100, 900),
     ("fee for the permit to run the {e}", "what do I pay annually for being allowed to use the {e}")),
    ("Nobody under {v} may work with it alone.", _number(14, 21),
     ("age limit for using the {e}", "can a teenager operate the {e} without supervision")),
    ("At full load the {e} can be heard at a distance of {v} metres.", _number(20, 700),
     ("how loud is the {e}", "noise of the {e}")),
    ("The emergency stop is behind the {v} panel.", _one_of("left", "rear", "upper", "front", "lower"),
     ("how do I shut down the {e} in an emergency", "where is the {e} kill switch")),
    ("Records of its use are destroyed after {v} years.", _number(2, 12),
     ("how long are logs about the {e} retained", "data retention for the {e}")),
)  # fmt: skip
_FILLER = (
    "Further details are in the printed manual.", "This page is checked once a year.",
    "Whoever finds a mistake may tell the editors.", "Earlier versions of this page are in the archive.",
    "Photographs were taken with permission.", "Measurements follow the usual standard.",
)  # fmt: skip


def generate(pages: int, questions: int, seed: int = 7) -> JudgedSet:
    """So many pages (at most 1,500) about four things with one name, and questions about these."""
    rng = random.Random(seed)
    names: dict[str, None] = {}
    while len(names) < pages:
        names[f"{rng.choice(_START)}{rng.choice(_MIDDLE)}{rng.choice(_END)}"] = None
    made: dict[str, Page] = {}
    asked: list[Question] = []
    for name in names:
        facts, text = [], f"# {name}\n"
        for kind in rng.sample(_KINDS, _THINGS):
            thing = f"{name} {kind}"
            parts, known = _part(thing, rng)
            text += f"\n## {thing}\n\n" + "\n\n".join(parts) + "\n"
            facts += [(thing, text.rindex(stated), stated, ways) for stated, ways in known]
        page = f"{name.lower()}.md"
        made[page] = markdown_page(text)
        for thing, start, stated, ways in facts:
            query = rng.choice(ways).format(e=thing)
            asked.append(Question(f"g{len(asked):05d}", query, ((page, start, start + len(stated)),)))
    return JudgedSet("generated", made, tuple(rng.sample(asked, min(questions, len(asked)))))


def _part(thing: str, rng: random.Random) -> tuple[list[str], list[tuple[str, tuple[str, ...]]]]:
    facts = [(said.format(e=thing, v=value(rng)), ways) for said, value, ways in rng.sample(_FACTS, _STATED)]
    lines = [said for said, _ in facts]
    for filler in rng.sample(_FILLER, 3):
        lines.insert(rng.randrange(len(lines) + 1), filler)
    parts = [" ".join(lines[begin : begin + 4]) for begin in range(0, len(lines), 4)]
    return parts, facts
