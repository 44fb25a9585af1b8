"""Second set of questions of known meaning, by somebody who had not read the content gate or the first set's templates.

A topic has forms of words and slots; a slot has values, and a value has wordings that mean the same. Two questions mean
the same if topic and values are equal. A change gives one slot another value, or swaps two slots of one kind.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from benchmarks.response_cache.pairs import Question

_SLOTS = {  # name: kind of change, values, each with its wordings
    "lacks": ("negation", "with yeast|containing yeast; without yeast|containing no yeast|lacking yeast"),
    "except": ("negation", "including the weekends|weekends included; except the weekends|excluding weekends"),
    "unless": ("negation", "if it rains|in case it rains; unless it rains|if it does not rain"),
    "still": ("negation", "still accepts|continues to accept; no longer accepts|stopped accepting"),
    "fails": ("negation", "manages to start|succeeds in starting; fails to start|does not manage to start"),
    "never": ("negation", "often|frequently; hardly ever|rarely; never|at no time"),
    "count": ("number", "2|two; 3|three; 4|four; 6|six; 9|nine; 12|twelve; 15|fifteen; 40|forty"),
    "big": ("number", "1,500|1500; 15,000|15000; 2,000,000|2 million; 250; 2500; 0.25; 2.5"),
    "fraction": ("number", "a third of|one third of; half of|half; a quarter of|one quarter of; twice|double"),
    "ordinal": ("ordinal", "first|1st; second|2nd; third|3rd; fifth|5th; seventh|7th; tenth|10th; last|final"),
    "range": (
        "range",
        "3 to 5|between 3 and 5|3-5; 5 to 8|between 5 and 8|5-8; 3 to 8|between 3 and 8; 30 to 50|30-50",
    ),
    "day": (
        "date",
        "5 June 1987|June 5, 1987; 6 June 1987|June 6, 1987; 5 July 1987|July 5, 1987; 5 June 1978|June 5, 1978",
    ),
    "weekday": ("date", "on Monday|on Mondays; on Tuesday|on Tuesdays; on Sunday|on Sundays; on Friday|on Fridays"),
    "decade": ("date", "the 1920s|the twenties; the 1930s|the thirties; the 1950s|the fifties; the 19th century"),
    "clock": ("time", "7 am|7:00 am; 7 pm|7:00 pm|19:00; 9:30; 10:30; noon|midday; midnight"),
    "span": ("time", "a week|7 days; a fortnight|two weeks; a month; a quarter; a year|12 months; a decade|ten years"),
    "unit": ("unit", "teaspoons|tsp; tablespoons|tbsp; cups; ml|millilitres; ounces|oz; grams|g"),
    "prefix": ("unit", "mg|milligrams; µg|micrograms; g|grams"),
    "power": ("unit", "kW|kilowatts; MW|megawatts; kWh|kilowatt-hours; horsepower|hp"),
    "temperature": ("unit", "°C|degrees Celsius; °F|degrees Fahrenheit; kelvin|K"),
    "money": (
        "currency",
        "80 yen|¥80; 80 rupees; 80 francs|CHF 80; 80 pesos; 80 kronor|SEK 80; £80|80 pounds sterling",
    ),
    "version": ("version", "3.1; 3.10; 3.11; 3.12; 4.0|4; 4.0.1; 5.2-rc1"),
    "player": ("name", "Capablanca; Tal; Alekhine; Botvinnik; Petrosian; Korchnoi; Judit Polgar; Magnus Carlsen"),
    "composer": ("name", "Sibelius; Grieg; Ravel; Debussy; Bartok; Dvorak; Clara Schumann; Robert Schumann"),
    "song": ("title", "the moonlight sonata; the pathetique sonata; the goldberg variations; the kreutzer sonata"),
    "planet": ("name", "Mercury; Venus; Mars; Neptune; Uranus; Titan; Triton"),
    "place": ("place", "Porto; Lyon; Zagreb; Tallinn; Osaka; Kyoto; Perth; Georgia the state; Georgia the country"),
    "side": ("place", "northern|north; southern|south; eastern|east; western|west"),
    "acronym": ("acronym", "TCP|Transmission Control Protocol; UDP|User Datagram Protocol; SCTP; QUIC"),
    "tax": ("acronym", "VAT|value added tax; GST|goods and services tax; IRA; ISA; CPI; PPI"),
    "compare": ("comparative", "faster|quicker; slower|less fast; just as fast"),
    "extreme": ("comparative", "largest|biggest; smallest|tiniest; second largest|second biggest"),
    "cost": ("comparative", "cheaper|less expensive; dearer|more expensive"),
    "order": ("direction", "before|prior to; after|following; during|in the course of"),
    "toward": ("direction", "to; from"),
    "switch": ("direction", "enable|turn on|switch on; disable|turn off|switch off"),
    "raise": ("direction", "raise|increase; lower|reduce"),
    "turn": ("direction", "clockwise; anticlockwise|counterclockwise"),
    "end": ("direction", "import|bring in; export|send abroad"),
    "inside": ("direction", "indoors|inside the house; outdoors|outside in the open"),
    "quantity": (
        "quantifier",
        "all|every one of the; some|a few of the; none|not one of the; most|the majority of the",
    ),
    "atleast": ("quantifier", "at least|no fewer than; at most|no more than; exactly|precisely"),
    "both": ("quantifier", "both; either one; neither"),
    "must": ("modality", "must|have to; may|am allowed to; should|ought to"),
    "can": ("modality", "is it possible|can it happen; is it likely|is it probable; is it certain"),
    "tense": ("tense", "has been|was in the past; is now|is at present; will be|is going to be"),
    "done": ("tense", "have already planted; am planting now; will plant next"),
    "only": ("scope", "only the tenant signs; the tenant signs only a copy; the tenant and the landlord sign"),
    "scope": ("scope", "each night; on the night as a whole; per person each night; per room each night"),
    "flag": ("code", "--force; --force-with-lease; --no-verify; -f; -F; -n"),
    "name": ("code", "list.append; list.extend; list.insert; dict.update; dict.setdefault; set.discard"),
    "ident": ("code", "maxRetries; maxRetryDelay; minRetries; max_conns; max_idle_conns"),
    "operator": ("code", "<=; <; >=; ==; !=; ==="),
    "file": ("file", "config.yaml; config.yml.bak; values.yaml; .env; .env.local; /etc/hosts; /etc/hostname"),
    "port": ("code", "0.0.0.0:8443; 127.0.0.1:8443; 0.0.0.0:8080; [::1]:8443"),
    "dish": ("thing", "sourdough; brioche; focaccia; rye bread; pita bread"),
    "plant": ("thing", "tomatoes|tomato plants; peppers|pepper plants; leeks; courgettes|zucchini; basil"),
    "part": ("thing", "radiator; alternator; gearbox|transmission; clutch; exhaust"),
    "drug": ("thing", "ibuprofen; paracetamol|acetaminophen; aspirin; naproxen"),
    "metal": ("thing", "copper; nickel; zinc; chromium; cobalt"),
    "group": ("thing", "adults|grown-ups; children|kids; infants|babies; pregnant women"),
    "bird": ("thing", "swallow; swift; heron; stork; crane"),
    "who": ("pronoun", "I; you; they; we; she; he"),
    "whose": ("pronoun", "my sister's; my brother's; my own; your; their"),
    "german": ("other language", "mit Milch; ohne Milch; statt Milch; mit Butter; ohne Butter"),
    "french": ("other language", "avant; après; pendant"),
    "spanish": ("other language", "activar; desactivar; borrar"),
    "swedish": ("other language", "måste man; får man; får man inte; brukar man"),
    "japanese": ("other language", "東京; 京都; 大阪"),
}

_TOPICS = tuple(
    tuple(line.strip() for line in block.strip().splitlines())
    for block in """
How long should {dish} {lacks} rest in the fridge?
For how long should I leave {dish} {lacks} to rest in the fridge?

How many {unit} of salt go into {count} loaves of {dish}?
{count} loaves of {dish} need how many {unit} of salt?
What amount of salt, in {unit}, is needed for {count} loaves of {dish}?

Bake {dish} at 220 {temperature} for how long when the oven is small?
What is the baking time of {dish} at 220 {temperature} in a small oven?

Is the museum in {place} open {except} {order} the festival?
Does the museum in {place} open {except} {order} the festival?

Should I water the {plant} {inside} {unless}?
Do I need to give the {plant} water {inside} {unless}?

I {done} {plant} on the {side} side; what fertiliser is best?
What is the best fertiliser if I {done} {plant} on the {side} side?

What does it mean when the {part} {never} makes a noise and the car {fails}?
The {part} {never} makes a noise and the car {fails}: what does that mean?

What happens if I turn the {part} screw {turn} by {fraction} its travel?
I turn the {part} screw {turn} by {fraction} its travel; what happens?

How many {prefix} of {drug} are safe for {group} over {span}?
Over {span}, what is the safe amount of {drug} for {group} in {prefix}?

Is {drug} {compare} in effect than a placebo for {group}?
For {group}, is {drug} {compare} in effect than a placebo?

Which opening did {player1} choose in the {ordinal} game against {player2}?
In the {ordinal} game against {player2}, which opening did {player1} choose?

Did {player1} beat {player2} {order} the tournament of {decade}?
In {decade}, {order} the tournament, did {player1} beat {player2}?

Why did {composer1} admire {composer2} in {decade}?
What made {composer1} admire {composer2} in {decade}?

What key is the {ordinal} movement of {song} in?
In which key is the {ordinal} movement of {song}?

How bright is {planet1} as seen from {planet2} on {day}?
On {day}, what is the brightness of {planet1} as seen from {planet2}?

What is the {extreme} crater on the {side} half of {planet}?
Which crater is the {extreme} on the {side} half of {planet}?

Which train goes {toward} {place} {weekday} at {clock}?
{weekday} at {clock}, which train goes {toward} {place}?

Can I send {money} {toward} {place} without a fee?
Is it free of charge to send {money} {toward} {place}?

Is a ticket {cost} than {money} {weekday}?
{weekday}, is a ticket {cost} than {money}?

What {tax} is due on {big} bicycles that {place} firms {end}?
Firms of {place} {end} {big} bicycles: what {tax} is due?

What changed in release {version} for people who use {flag}?
For people who use {flag}, what is different in release {version}?

Does release {version} work when the server {still} {acronym} connections?
The server {still} {acronym} connections: does release {version} work?

How do I {switch} {ident} in {file}?
What is the way to {switch} {ident} in {file}?
In {file}, how can I {switch} {ident}?

What is the default of {ident} when the server listens at {port}?
When the server listens at {port}, what is {ident} by default?

What does {name} return if the length is {operator} {count}?
If the length is {operator} {count}, what is returned by {name}?

Does git push {flag} rewrite {quantity} tags?
Will {quantity} tags be rewritten by git push {flag}?

Do {quantity} alloys with {atleast} {count} percent {metal} rust?
With {atleast} {count} percent {metal}, do {quantity} alloys rust?

How do I {raise} the melting point of {metal} under {big} bar?
Under {big} bar, what would {raise} the melting point of {metal}?

Is the output of {big} {power} enough for {count} houses?
Are {count} houses served by an output of {big} {power}?

What if {only} on {day}?
What follows in law if {only} on {day}?

What is the price of the cabin {scope} for {range} guests?
For {range} guests, what does the cabin cost {scope}?

What {must} I file within {span} when {both} parents are abroad?
When {both} parents are abroad, what {must} I file within {span}?

{can} that a {bird} nests {inside} in {place}?
In {place}, {can} that a {bird} nests {inside}?

Who {tense} the mayor of {place}?
The mayor of {place}: who {tense} that?

How heavy is a {bird} of {range} weeks on average?
On average, what is the weight of a {bird} aged {range} weeks?

Ann and {whose} cousin rent a flat; what do {who} owe by {day}?
What do {who} owe by {day} if Ann and {whose} cousin rent a flat?

How should {who} answer the letter about {whose} pension of {money}?
What should {who} write back to the letter about {whose} pension of {money}?

Wie lange hält sich ein Kuchen {german} im Kühlschrank?
Wie viele Tage hält ein Kuchen {german} im Kühlschrank?

Faut-il éteindre le four {french} la cuisson du gratin ?
Doit-on éteindre le four {french} la cuisson du gratin ?

¿Cómo puedo {spanish} las notificaciones del teléfono?
¿De qué manera puedo {spanish} las notificaciones del teléfono?

Vilka papper {swedish} lämna in vid flytt?
Vid flytt, vilka papper {swedish} lämna in?

{japanese}の天気はどうですか？
{japanese}はどんな天気ですか？
""".strip().split("\n\n")
)
_CONTRACTIONS = (("What is", "What's"), ("Who is", "Who's"), ("does not", "doesn't"), ("it is", "it's"))
_BEFORE = ("Please tell me: ", "Hi! ", "Could you help? ", "Quick question: ", "I wonder: ")
_AFTER = (" Thanks!", " Thank you.", " Cheers")


@dataclass(frozen=True, slots=True)
class _Slot:
    kind: str
    values: tuple[tuple[str, ...], ...]  # wordings of each

    @staticmethod
    def read(name: str) -> _Slot:
        kind, values = _SLOTS[name.rstrip("12")]
        return _Slot(kind, tuple(tuple(value.strip().split("|")) for value in values.split(";")))


def questions(count: int, seed: int) -> list[Question]:
    """So many questions, each a paraphrase of an earlier one, or a change of one, or new."""
    draw, made, found = random.Random(seed), list[tuple[int, dict[str, int], int]](), list[Question]()
    while len(found) < count:
        lot = draw.random()
        if not made or lot < 0.15:
            topic, change, of = draw.randrange(len(_TOPICS)), "new", None
            values = _values(topic, draw)
            made.append((topic, values, len(found)))
        else:
            topic, values, of = draw.choice(made[-400:])
            change = "paraphrase"
            if lot > 0.55:
                values, change = _changed(values, draw)
        found.append(Question(_text(topic, values, draw), f"{topic} {sorted(values.items())}", change, of))
    return found


def _values(topic: int, draw: random.Random) -> dict[str, int]:
    values: dict[str, int] = {}
    for name in re.findall(r"{(\w+)}", _TOPICS[topic][0]):
        taken = {values[other] for other in values if other.rstrip("12") == name.rstrip("12")}
        values[name] = draw.choice([value for value in range(len(_Slot.read(name).values)) if value not in taken])
    return values


def _changed(values: dict[str, int], draw: random.Random) -> tuple[dict[str, int], str]:
    pairs = [name[:-1] for name in values if name.endswith("1")]
    if pairs and draw.random() < 0.4:
        first, second = f"{pairs[0]}1", f"{pairs[0]}2"
        return {**values, first: values[second], second: values[first]}, "order"
    name = draw.choice(list(values))
    taken = {value for other, value in values.items() if other.rstrip("12") == name.rstrip("12")}
    slot = _Slot.read(name)
    return {**values, name: draw.choice([v for v in range(len(slot.values)) if v not in taken])}, slot.kind


def _text(topic: int, values: dict[str, int], draw: random.Random) -> str:
    """One wording of a question, with what people add and get wrong; slots have no typing errors."""
    form = draw.choice(_TOPICS[topic])
    if draw.random() < 0.1:
        form = _mistyped(form, draw)
    text = form.format(**{name: draw.choice(_Slot.read(name).values[value]) for name, value in values.items()})
    text = text[0].upper() + text[1:] if text[0].islower() else text
    style = draw.random()
    if style < 0.2:
        for long, short in _CONTRACTIONS:
            text = text.replace(long, short)
    elif style < 0.35:
        text = draw.choice(_BEFORE) + text
    elif style < 0.45:
        text += draw.choice(_AFTER)
    elif style < 0.55:
        text = text.rstrip("?")
    return text


def _mistyped(form: str, draw: random.Random) -> str:
    words = list(re.finditer(r"(?<![{\w])[a-z]{5,}(?![}\w])", form))
    if not words:
        return form
    word = draw.choice(words)
    place = word.start() + draw.randrange(1, len(word.group()) - 2)
    return form[:place] + form[place + 1] + form[place] + form[place + 2 :]
