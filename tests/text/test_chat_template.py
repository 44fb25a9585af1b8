from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.errors import ChatTemplateError, CheckpointError

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


async def render(chat: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
    return await chat.render(chat.request(messages, **options))


Loader = Callable[..., ChatTemplate]


@pytest.fixture
async def load_template(tmp_path: Path) -> AsyncGenerator[Loader, None]:
    """Loads a template from its source, or that of a directory; ends their processes."""
    loaded: list[ChatTemplate] = []

    def load(source: str | None = None, directory: Path = tmp_path, **options: Any) -> ChatTemplate:
        if source is not None:
            (directory / "tokenizer_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
            (directory / "chat_template.jinja").write_text(source, encoding="utf-8")
        loaded.append(ChatTemplate.load(directory, **options))
        return loaded[-1]

    yield load
    for each in loaded:
        await each.close()


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
async def test_rendering_agrees_with_transformers(load_template, checkpoint, tools, add_generation_prompt):
    from transformers import PreTrainedTokenizerFast

    file = str(checkpoint("byte_level") / "tokenizer.json")
    oracle = PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, style="!", **options)
    assert await render(load_template(TEMPLATE), CONVERSATION, variables={"style": "!"}, **options) == expected


async def test_the_demo_models_template_agrees_with_transformers(load_template: Loader) -> None:
    directory = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
    if not directory.is_dir():
        pytest.skip("the package carries no demo model")
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(directory)
    chat = load_template(directory=directory)
    for tools in (None, TOOLS):
        expected = oracle.apply_chat_template(CONVERSATION, tokenize=False, tools=tools, add_generation_prompt=True)
        assert await render(chat, CONVERSATION, tools=tools) == expected


@pytest.mark.parametrize("text", ["\ud83d", "räksmörgås 漢字 😀", "a\x00b", "{{ 7 * 7 }}{% raw %}"])
async def test_what_messages_say_comes_through_as_it_is(load_template: Loader, text: str) -> None:
    arguments = {"text": text, "numbers": [10**30, 1.5, float("inf"), -0.0], "flags": [True, False, None]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = load_template("{{ messages[0].content }}|{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    shown = await render(chat, [{"role": "assistant", "content": text, "tool_calls": [call]}])
    assert shown == f"{text}|{json.dumps(arguments, ensure_ascii=False)}"


ECHO = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls is defined }}]{% endfor %}"
)


async def test_messages_are_put_in_the_form_templates_know(load_template: Loader) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "å"}'}}
    broken = {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    bare = {"id": "e", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, broken, bare]},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]
    before = json.dumps(messages)
    text = await render(load_template(ECHO), messages)
    assert text.startswith("[system:a\nb][assistant:[{")
    assert '"arguments": {"a": "å"}' in text
    assert '"arguments": "{oops"' in text
    assert '"arguments": {}' in text
    assert text.endswith("[assistant:x]")
    assert json.dumps(messages) == before


async def test_parts_that_are_not_text_are_refused(load_template: Loader) -> None:
    with pytest.raises(ChatTemplateError, match="text"):
        await render(load_template(ECHO), [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


async def test_the_final_message_is_left_open_to_be_continued(load_template: Loader) -> None:
    messages = [{"role": "user", "content": "Sing"}, {"role": "assistant", "content": "La la "}]
    chat = load_template("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</end>{% endfor %}")
    assert await render(chat, messages, continue_final_message=True) == "<user>Sing</end><assistant>La la "
    with pytest.raises(ChatTemplateError, match="no final message"):
        await render(chat, [], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        await render(load_template("nothing of it"), messages, continue_final_message=True)


async def test_named_templates_are_chosen_by_whether_there_are_tools(load_template: Loader, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    chat = load_template()
    assert (await render(chat, []), await render(chat, [], tools=TOOLS)) == ("plain", "tools")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [*named, {"name": "third"}]}))
    with pytest.raises(CheckpointError, match="chat_template"):
        load_template()


async def test_the_jinja_file_wins_over_the_configuration_and_an_override_over_both(load_template, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "configuration"}))
    assert await render(load_template(), []) == "configuration"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert await render(load_template(), []) == "file"
    assert await render(load_template(override="{{ 'override' }}"), []) == "override"
    other = tmp_path / "other.jinja"
    other.write_text("from a file")
    assert await render(load_template(override=str(other)), []) == "from a file"
    with pytest.raises(ChatTemplateError, match="Cannot read"):
        load_template(override=str(tmp_path / "absent.jinja"))


async def test_a_model_without_a_template_says_what_to_do(load_template: Loader) -> None:
    chat = load_template()
    assert not chat.exists
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        await render(chat, [{"role": "user", "content": "hi"}])


async def test_the_templates_own_refusal_reaches_the_caller_word_for_word(load_template: Loader) -> None:
    with pytest.raises(ChatTemplateError, match=r"^Roles must alternate$"):
        await render(load_template("{{ raise_exception('Roles must alternate') }}"), [])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ undefined.attribute }}",
        "{{ messages[0].content + 1 }}",
    ],
)
async def test_forbidden_and_failing_expressions_become_typed_errors(load_template: Loader, source: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot render"):
        await render(load_template(source), [{"role": "user", "content": "x"}])


async def test_a_template_that_does_not_parse_is_refused_when_it_is_loaded(load_template: Loader) -> None:
    with pytest.raises(ChatTemplateError, match="not valid"):
        await load_template("{% for %}").start()


async def test_variables_of_the_server_cannot_be_replaced(load_template: Loader) -> None:
    chat = load_template("{{ enable_thinking }}{{ bos_token }}")
    assert await render(chat, [], variables={"enable_thinking": True}) == "True<s>"
    with pytest.raises(ChatTemplateError, match="'bos_token'"):
        await render(chat, [], variables={"bos_token": "x"})
    with pytest.raises(ChatTemplateError, match="'messages'"):
        await render(chat, [], variables={"messages": [], "self": 1})


async def test_the_date_can_be_asked_for(load_template: Loader) -> None:
    assert (await render(load_template("{{ strftime_now('%Y') }}"), [])).isdigit()
