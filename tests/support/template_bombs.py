"""Chat templates that would take all time or all memory. `n` is a variable, so that nothing is worked out when they are
compiled."""

from __future__ import annotations


def _loops(body: str) -> str:
    return f"{{% for a in range(n) %}}{{% for b in range(n) %}}{body}{{% endfor %}}{{% endfor %}}"


def _grows(start: str, step: str) -> str:
    return (
        f"{{% set s = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set s.x = {step} %}}{{% endfor %}}"
        "{{ s.x | string | length }}"
    )


def _printed(expression: str) -> str:
    return f"{{{{ {expression} }}}}"


BOMBS = {
    # time
    "counter switched off": "{% set _kvarn_tick = dict %}" + _loops("{% for c in range(n) %}{% endfor %}"),
    "loops": _loops(""),
    "loops with a cycle": _loops("{% if loop.cycle(0, 0) %}x{% endif %}"),
    "loops over groups": _loops("{% for c in range(n) | groupby('real') %}{% endfor %}"),
    "loops over a sorted list": _loops("{% for c in range(n) | sort | reverse %}{% endfor %}"),
    "recursive macro": "{% macro f(a) %}{{ f(a + 1) }}{{ f(a + 1) }}{% endmacro %}{{ f(n) }}",
    "macro that doubles": "{% macro f(a) %}{% if a %}{{ f(a - 1) }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "recursive loop": "{% for a in [n] recursive %}{{ loop([a]) }}{{ loop([a]) }}{% endfor %}",
    "call blocks": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 40
    + "x"
    + "{% endcall %}" * 40,
    "power": _printed("10 ** (10 ** (n // 10000)) > 1"),
    "powers of powers": _grows("n", "s.x ** 1000"),
    "squares": _grows("n", "s.x * s.x"),
    "power of a power": _printed("(2 ** 1000) ** (n * 99) > 1"),
    "nested lists": _grows("[0]", "[s.x, s.x]"),
    "nested lists as JSON": _grows("[0]", "[s.x, s.x]") + "{{ s.x | tojson }}",
    "lipsum": _printed("lipsum(n=n, min=n, max=n + 1)"),
    "slice": _printed("'x' | slice(n * 10 ** 6) | list | length"),
    "wordwrap": _printed("('x' * n * 10) | wordwrap(1, wrapstring='y' * n)"),
    "sum of lists": _printed("([[n] * n] * n) | sum(start=[]) | length"),
    "word count": "{% for a in range(n) %}{% if ('x ' * n * 99) | wordcount %}{% endif %}{% endfor %}",
    "links": "{% for a in range(n) %}{% set x = ('www.' * n) | urlize %}{% endfor %}",
    "tags stripped": "{% for a in range(n) %}{% set x = ('<!--' * n) | striptags %}{% endfor %}",
    "letters replaced": _grows("'a'", "s.x.translate({97: 'aaaa'})"),
    # memory
    "repeated text": _printed("'x' * (n * 10 ** 6)"),
    "repeated list": _printed("([n] * (n * 10 ** 6)) | length"),
    "doubled by ~": _grows("'x'", "s.x ~ s.x"),
    "doubled by +": _grows("'x'", "s.x + s.x"),
    "doubled list": _grows("[0]", "s.x + s.x"),
    "text of blocks": "{% set x %}x{% endset %}"
    + "".join(f"{{% set x %}}{'{{ x }}' * 20}{{% endset %}}" for _ in range(20)),
    "dicts of dicts": "{% set s = namespace(x={}) %}" + _loops("{% set s.x = dict(s.x, **{'a' ~ a ~ '.' ~ b: s.x}) %}"),
    "JSON with a wide indent": _printed("[[n], [n]] | tojson(indent=n * 10 ** 5)"),
    "batch": _printed("'x' | batch(n * 10 ** 6, 0) | list | length"),
    "width by %": _printed("('%' ~ n * 20000 ~ 'd') % 1"),
    "width by a filter": _printed("('%' ~ n * 20000 ~ 'd') | format(1)"),
    "width by format": _printed("('{:' ~ n * 20000 ~ '}').format(1)"),
    "width by format_map": _printed("('{a:' ~ n * 20000 ~ '}').format_map({'a': 1})"),
    "center": _printed("'x' | center(n * 20000)"),
    "ljust": _printed("'x'.ljust(n * 20000)"),
    "zfill": _printed("'x'.zfill(n * 20000)"),
    "tabs": _printed("'\\t\\t'.expandtabs(n * 20000)"),
    "replace": _grows("'aaaa'", "s.x | replace('a', 'aaaa')"),
    "replace of nothing": _grows("'aaaa'", "s.x.replace('', s.x)"),
    "join": _grows("'ab'", "s.x.join(s.x)"),
    "join by a filter": _grows("'ab'", "s.x | join(s.x)"),
    "indent": _printed("('x\\n' * 999) | indent(n * 10 ** 4)"),
    "long refusal": _printed("raise_exception('x' * (n * 10 ** 6))"),
    "long date": _printed("strftime_now('%c' * n * 10000)"),
    # others
    "text written for ever": _loops("{{ 'x' * 1000 }}"),
    "long number": _printed("(n ** 3000) | string"),
}
