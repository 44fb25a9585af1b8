from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.text import ChatTemplate, ChatTemplateError

# In the manner of published templates: macros, namespaces, loop controls, tools, whitespace control.
TEMPLATE = """\
{%- macro show(text) %}{{ text | trim }}{% endmacro %}
{{- bos_token }}
{% set ns = namespace(seen=0) %}
{%- if tools %}
<tools>
{%- for tool in tools %}
{{ tool | tojson(indent=2) }}
{%- endfor %}
</tools>
{% endif %}
{%- for message in messages %}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {%- if message.role == "assistant" %}
<|assistant|>{% generation %}{{ show(message.content) }}{% endgeneration %}
        {%- for call in message.tool_calls or [] %}
<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>
        {%- endfor %}{{ eos_token }}
    {%- else %}
<|{{ message.role }}|>{{ message.content }}{{ eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|assistant|>{% endif %} {{- style | default("") }}
"""
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds <a> & 'b' in Växjö", "parameters": {"type": "object"}},
    }
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief. <b>&</b>"},
    {"role": "user", "content": "1 + 1?\n"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "å": "<"}}}],
    },
    {"role": "tool", "content": "2", "tool_call_id": "c"},
    {"role": "assistant", "content": " It is 2 "},
    {"role": "user", "content": "Tack! 😀"},
]
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


def template(tmp_path: Path, source: str, **config: object) -> ChatTemplate:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    return ChatTemplate.load(tmp_path)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendering_agrees_with_transformers(
    tmp_path: Path, checkpoint: Callable[..., Path], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    file = str(checkpoint("byte_level") / "tokenizer.json")
    oracle = PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt, "style": "!"}
    expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, **options)
    assert template(tmp_path, TEMPLATE).render(CONVERSATION, **options) == expected


def test_the_demo_models_template_agrees_with_transformers() -> None:
    directory = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
    if not directory.is_dir():
        pytest.skip("the package carries no demo model")
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(directory)
    for tools in (None, TOOLS):
        expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, tools=tools, add_generation_prompt=True)
        assert ChatTemplate.load(directory).render(CONVERSATION, tools=tools) == expected


ECHO = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls is defined }}]{% endfor %}"
)


def test_messages_are_put_in_the_form_templates_know(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "å"}'}}
    broken = {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    bare = {"id": "e", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, broken, bare]},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]
    before = json.dumps(messages)
    text = template(tmp_path, ECHO).render(messages)
    assert text.startswith("[system:a\nb][assistant:[{")
    assert '"arguments": {"a": "å"}' in text
    assert '"arguments": "{oops"' in text
    assert '"arguments": {}' in text
    assert text.endswith("[assistant:x]")
    assert json.dumps(messages) == before


def test_parts_that_are_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="text"):
        template(tmp_path, ECHO).render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_the_final_message_is_left_open_to_be_continued(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Sing"}, {"role": "assistant", "content": "La la "}]
    chat = template(tmp_path, "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</end>{% endfor %}")
    assert chat.render(messages, continue_final_message=True) == "<user>Sing</end><assistant>La la "
    with pytest.raises(ChatTemplateError, match="no final message"):
        chat.render([], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        template(tmp_path, "nothing of it").render(messages, continue_final_message=True)


def test_named_templates_are_chosen_by_whether_there_are_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    chat = ChatTemplate.load(tmp_path)
    assert (chat.render([]), chat.render([], tools=TOOLS)) == ("plain", "tools")


def test_the_jinja_file_wins_over_the_configuration_and_an_override_over_both(tmp_path: Path) -> None:
    assert template(tmp_path, "file", chat_template="configuration").render([]) == "file"
    assert ChatTemplate.load(tmp_path, override="{{ 'override' }}").render([]) == "override"
    other = tmp_path / "other.jinja"
    other.write_text("from a file")
    assert ChatTemplate.load(tmp_path, override=str(other)).render([]) == "from a file"
    with pytest.raises(ChatTemplateError, match="Cannot read"):
        ChatTemplate.load(tmp_path, override=str(tmp_path / "absent.jinja"))


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    chat = ChatTemplate.load(tmp_path)
    assert not chat.exists
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        chat.render([{"role": "user", "content": "hi"}])


def test_the_templates_own_refusal_reaches_the_caller_word_for_word(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"^Roles must alternate$"):
        template(tmp_path, "{{ raise_exception('Roles must alternate') }}").render([])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in messages %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ messages * 10 ** 9 }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_runaway_template_is_stopped(tmp_path: Path, source: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot render"):
        template(tmp_path, source).render([{"role": "user", "content": "x"}] * 3)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ undefined.attribute }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_forbidden_and_failing_expressions_become_typed_errors(tmp_path: Path, source: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot render"):
        template(tmp_path, source).render([{"role": "user", "content": "x"}])


def test_a_template_that_does_not_parse_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="not valid"):
        template(tmp_path, "{% for %}")


def test_variables_of_the_server_cannot_be_replaced(tmp_path: Path) -> None:
    chat = template(tmp_path, "{{ enable_thinking }}{{ bos_token }}")
    assert chat.render([], enable_thinking=True) == "True<s>"
    with pytest.raises(ChatTemplateError, match="'bos_token'"):
        chat.render([], bos_token="x")
    with pytest.raises(ChatTemplateError, match="'messages'"):
        chat.render([], **{"messages": [], "self": 1})


def test_the_date_can_be_asked_for(tmp_path: Path) -> None:
    assert template(tmp_path, "{{ strftime_now('%Y') }}").render([]).isdigit()
