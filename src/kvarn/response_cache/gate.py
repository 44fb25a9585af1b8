"""The content gate: what two questions must have in common, word for word, before their meanings are compared.

Vectors of sentences are nearly blind to a number, a name or a `not`, and hold two kinds of bread as near as two words
for one kind. Questions are therefore compared only with those of the same contents: numbers, units and names in the
same order; all other words but the plainest in any order.
"""

from __future__ import annotations

import hashlib
import re

_WORDS = {
    "negation": "not no never none nobody nothing neither nor without cannot except unless exclude excluding non",
    "unit": (
        "mm cm m km millimeter millimeters centimeter centimeters meter meters kilometer kilometers metre metres"
        " kilometre kilometres inch inches foot feet yard yards mile miles mg g kg gram grams kilogram kilograms ton"
        " tons tonne tonnes ounce ounces oz pound pounds lbs ml l liter liters litre litres gallon gallons ms s second"
        " seconds minute minutes hour hours day days week weeks month months year years bit bits byte bytes kb mb gb tb"
        " kib mib gib tib celsius fahrenheit kelvin degrees percent usd eur gbp sek dollar dollars euro euros cent"
        " cents watt watts kw kwh volt volts hz khz mhz ghz mph knots acres hectares"
    ),
    "date": (
        "monday tuesday wednesday thursday friday saturday sunday january february april june july august"
        " september october november december today tomorrow yesterday morning noon evening night summer autumn"
        " winter am pm"
    ),
    "degree": (
        "before after more less fewer most least first last next previous above below over under up down out off into"
        " start stop begin end enable disable increase decrease raise lower maximum minimum max min highest lowest"
        " largest smallest longest shortest best worst old new oldest newest hot cold left right open close buy sell"
        " import export add remove install uninstall upload download encrypt decrypt push pull all only always or if"
        " unlike same different"
    ),
}
_BEGINNINGS = (
    "what what's how who who's when where which why is are was were do does did can could would should will may might"
    " must has have had please tell give show list explain describe find get make write help i i'm i'd i've my we our"
    " you your he she it its they the a an this that these those there here hi hello hey thanks thank so well ok okay"
    " yes also convert compare summarize translate define calculate compute name in on at for as of"
)
_OPENERS = frozenset(_BEGINNINGS.split())
"""Words that begin sentences: others with a capital are names there too."""
_DIRECTIONS = frozenset({"from", "to", "than", "until", "since", "between", "versus", "vs", "by", "against"})
"""Words that belong to the name or number that they stand before."""
_ARTICLES = frozenset({"a", "an", "the"})
_PLAINEST = (
    "this that these those it its there here i i'm i'd i've me my mine we us our am is are be do does can could would"
    " what which how of in on at for to with by as and so please tell give show get need want hi hello hey thanks thank"
    " cheers ok okay well yes also just"
)
_PLAIN = _ARTICLES.union(_PLAINEST.split())
"""Words that alter no meaning by themselves, or that each wording of a question has others of."""
_POLITE = re.compile(r"\b(?:can|could|would|will) you\b", re.IGNORECASE)
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_SAME = {"inch": "inches", "foot": "feet", "maximum": "max", "minimum": "min", "cannot": "not", "begin": "start"}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty"
)
_LARGE = {"thirty": "30", "forty": "40", "fifty": "50", "hundred": "100", "thousand": "1000", "million": "1000000"}
_NUMBERS = {word: str(number) for number, word in enumerate(_SMALL.split())} | _LARGE
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_TOKEN = re.compile(r"(?:[^\s,;:!?()\[\]{}\"“”`]|(?<=\d)[,:](?=\d))+")
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d.,]*%?")
_MIXED = re.compile(r"([-+]?\d[\d.,]*)([^\W\d]+)")
_CODE = re.compile(r"[_/\\=<>@#*{}|~^]|\w\.\w|\w::\w|[a-z][A-Z]|^-+[^\W\d]|\d[^\W\d]|[^\W\d]\d")
_ENDS = (".", "?", "!")


def contents_of(text: str) -> bytes:
    """Digest of the contents of a question: equal for those that may mean the same."""
    ordered: list[str] = []
    loose: list[str] = [f"quote {quoted}" for groups in _QUOTED.findall(text) for quoted in groups if quoted]
    begins, before = True, ""
    for token in _TOKEN.findall(_QUOTED.sub(" ", _POLITE.sub("can", text)).replace("’", "'")):
        word = token.strip(".'")
        if word:
            length, others = len(ordered), len(loose)
            _sort(word, begins, ordered, loose)
            if before in _DIRECTIONS and len(ordered) > length:
                ordered.insert(length, before)
            elif before in _DIRECTIONS and before != "to" and len(loose) > others:
                loose[others] = f"{before} {loose[others]}"
        begins = token.endswith(_ENDS)
        before = before if word.lower() in _ARTICLES else word.lower()
    whole = "\0".join([*ordered, "\1", *sorted(loose)])
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _sort(word: str, begins: bool, ordered: list[str], loose: list[str]) -> None:
    lower = word.lower().removesuffix("'s")
    if (mixed := _MIXED.fullmatch(word)) is not None and mixed[2].lower() in _KINDS:
        _sort(mixed[1], begins, ordered, loose)
        _sort(mixed[2], begins, ordered, loose)
    elif _NUMBER.fullmatch(word):
        ordered.append(_number(word))
    elif lower in _NUMBERS:
        ordered.append(_NUMBERS[lower])
    elif lower.endswith("n't"):
        loose.append("negation not")
    elif _CODE.search(word):
        loose.append(f"code {word}")
    elif (kind := _KINDS.get(lower)) is not None:
        (ordered if kind == "unit" else loose).append(f"{kind} {_SAME.get(lower, lower)}")
    elif word[0].isupper() and not (begins and lower in _OPENERS) and lower not in ("i", "i'm", "i'd", "i've"):
        ordered.append(f"name {lower}")
    elif lower not in _PLAIN:
        loose.append(f"word {_SAME.get(lower, _singular(lower))}")


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _number(text: str) -> str:
    """A number with or without separators of thousands; `3.10` stays another than `3.1`, since it may be a version."""
    return re.sub(r",(?=\d{3}(\D|$))", "", text).rstrip(".,")
