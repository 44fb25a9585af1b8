"""The flags of `kvarn serve`: each sets a setting, under vLLM's name where vLLM has one, and help shows its default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import kvarn.cli.serve
from kvarn.cli import options
from kvarn.cli.configure import configure
from kvarn.cli.main import app
from kvarn.cli.options import FLAGS, ServeOptions
from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.identity.open_server import auth_mode, check_host

ROOT = Path(__file__).parents[2]
SMALL = ("--max-model-len", "512", "--kv-cache-memory-bytes", "64M")


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch):
    """The configuration that a command line leads to."""

    def parse(*arguments: str) -> KvarnConfig:
        seen: list[ServeOptions] = []
        monkeypatch.setattr(kvarn.cli.serve, "run_server", lambda options, _: seen.append(options) or 0)
        done = CliRunner().invoke(app, ["serve", *arguments])
        assert done.exit_code == 0, done.output
        return configure(seen[0], pytest.fail)

    return parse


def setting_of(config: KvarnConfig, path: str) -> Any:
    value: Any = config.models[0] if path.startswith("models.") else config
    for name in path.removeprefix("models.").split("."):
        value = None if value is None else getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["--max-model-len", "4K"], "models.max_context_length", 4096),
        (["--max-context-length", "25.6k"], "models.max_context_length", 25600),
        (["--max-num-seqs", "7"], "models.engine.max_num_seqs", 7),
        (["--max-num-batched-tokens", "1k"], "models.engine.token_budget", 1000),
        (["--enable-prefix-caching"], "models.engine.prefix_cache", True),
        (["--no-enable-prefix-caching"], "models.engine.prefix_cache", False),
        (["--kv-cache-memory-bytes", "4G"], "models.kv_cache_gib", 4.0),
        (["--kv-cache-memory-bytes", "536870912"], "models.kv_cache_gib", 0.5),
        (["--kv-offloading-size", "4"], "models.kv_tiers.host_gib", 4.0),
        (["--kv-disk-size", "9", "--kv-disk-directory", "/kv"], "models.kv_tiers.directory", "/kv"),
        ([], "models.kv_tiers", None),
        ([], "models.packed_cache", "auto"),
        (["--packed-cache", "off"], "models.packed_cache", "off"),
        (["--packed-cache", "packed"], "models.packed_cache", str(Path("packed").absolute())),
        (["--dtype", "half"], "models.dtype", "float16"),
        (["--dtype", "float"], "models.dtype", "float32"),
        (["--tokenizer", "/t"], "models.tokenizer", "/t"),
        (["--chat-template", "{{ messages }}"], "models.chat_template", "{{ messages }}"),
        (["--generation-config", "vllm"], "models.generation_config", "none"),
        (["--seed", "0"], "models.seed", 0),
        (["--tool-call-parser", "llama3_json"], "models.tool_format", "llama3"),
        (["--tool-call-parser", "llama4_pythonic"], "models.tool_format", "pythonic"),
        (["--tool-call-parser", "qwen"], "models.tool_format", "hermes"),
        (["--served-model-name", "a", "--served-model-name", "b"], "models.name", "a"),
        (["--served-model-name", "a", "--served-model-name", "b"], "models.aliases", ("b",)),
        (["--api-key", "one", "--api-key", "two"], "auth.api_keys", ("one", "two")),
        (["--allowed-hosts", "llm.example.com"], "auth.allowed_hosts", ("llm.example.com",)),
        (["--allowed-origins", "https://a.example"], "gateway.allowed_origins", ("https://a.example",)),
        (["--allowed-origins", '["*"]'], "gateway.allowed_origins", ("*",)),
        (["--allowed-origins", "[]"], "gateway.allowed_origins", ()),
        ([], "gateway.allowed_origins", None),
        (["--root-path", "/llm"], "gateway.root_path", "/llm"),
        (["--ssl-certfile", "/c", "--ssl-keyfile", "/k"], "gateway.ssl_keyfile", "/k"),
        (["--speculative-config", '{"method": "none"}'], "models.speculation.method", "none"),
        (["--speculative-config", '{"num_speculative_tokens": 5}'], "models.speculation.num_speculative_tokens", 5),
        (["--log-format", "json"], "log_format", "json"),
    ],
)
def test_a_flag_sets_its_setting(configured, arguments, path, value):
    assert setting_of(configured("kvarn-demo", *arguments), path) == value


def test_behind_a_proxy_the_documented_lines_answer_to_its_name(configured):
    section = (ROOT / "docs/operate/proxy.md").read_text(encoding="utf-8")
    with_keys, with_a_name = (configured(*line.split()) for line in re.findall("^    kvarn serve (.*)$", section, re.M))
    assert auth_mode(with_keys) == "keys" and auth_mode(with_a_name) == "open"
    check_host([(b"host", b"llm.example.com")], with_a_name.auth.allowed_hosts)


def test_every_flag_shows_the_default_of_its_setting():
    plain = KvarnConfig()
    for name, flag in FLAGS.items():
        default = setting_of(plain, flag.setting)
        if isinstance(default, Section) or (default is None and flag.setting.startswith("models.kv_tiers.")):
            assert flag.default is None, name
        elif isinstance(default, bool):
            assert flag.default == ("on" if default else "off"), name
        elif default not in (None, "", ()):
            assert flag.default == str(default), name
        assert flag.help.endswith("."), name


def test_help_shows_the_defaults_under_headings(kvarn_inside):
    shown = kvarn_inside("serve", "--help").stdout
    headings = ("Common options", "Model", "KV cache", "Server", "Engine", "Logs")
    assert all(f"\n{heading}:\n" in shown for heading in headings) and "Common" in shown.partition("\nModel:")[0]
    assert "[default: 8000]" in " ".join(shown.split()) and "[default: 127.0.0.1]" in " ".join(shown.split())


def test_help_cuts_no_flag_name_at_80_columns(kvarn_inside):
    shown = kvarn_inside("serve", "--help", COLUMNS="80").stdout
    names = [name for flag, each in FLAGS.items() for name in (flag, each.other_name) if name]
    assert [name for name in names if not re.search(rf"(?<!\S){name}(?![\w-])", shown)] == []
    assert max(map(len, shown.splitlines())) <= 80


def test_the_page_of_the_command_line_names_every_option_of_serve() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    command = get_command(options.app)
    serve = command.commands["serve"] if isinstance(command, TyperGroup) else command
    names = [name for parameter in serve.params for name in parameter.opts if name.startswith("--")]
    assert set(FLAGS) <= set(names)
    assert [name for name in names if not re.search(rf"`[^`]*{name}(?![\w-])", page)] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ServeOptions(flags={"--kv-cache-gib": 1.0, "--kv-cache-memory-bytes": 2.0}),
            "--kv-cache-gib and --kv-cache-memory-bytes",
        ),
        (ServeOptions(named=["a=x", "b=y"], served_model_name=["c"]), "several are served"),
        (ServeOptions(flags={"--ssl-keyfile": "/k"}), "ssl_keyfile needs ssl_certfile"),
        (ServeOptions(served_model_name=["a", "a"]), "share the name 'a'"),
        (ServeOptions(flags={"--root-path": "llm/"}), "gateway.root_path"),
        (ServeOptions(flags={"--allowed-origins": ["example.org"]}), "gateway.allowed_origins"),
    ],
)
def test_flags_that_contradict_each_other_are_refused_by_name(options, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        configure(options, print)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len", "4.5K3"],
        ["--kv-cache-memory-bytes", "1.0001"],
        ["--dtype", "evil"],
        ["--tool-call-parser", "x"],
        ["--speculative-config", "ngram"],
        ["--speculative-config", "[1]"],
    ],
)
def test_a_value_that_cannot_be_read_names_its_flag(kvarn_inside, arguments):
    done = kvarn_inside("serve", *arguments)
    assert done.returncode == 2 and arguments[0] in done.stderr and "Traceback" not in done.stderr


def test_the_key_may_come_from_the_environment(configured, monkeypatch):
    monkeypatch.setitem(os.environ, "KVARN_API_KEY", "secret")
    assert configured("kvarn-demo").auth.api_keys == ("secret",)
    assert configured("kvarn-demo", "--api-key", "other").auth.api_keys == ("other",)


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(kvarn_inside):
    for text in ("two words", "schl\u00fcssel", "a\nb"):
        for command in (("serve", "--port", "0"), ("models", "--url", "http://127.0.0.1:1"), ("chat", "hi")):
            done = kvarn_inside(*command, KVARN_API_KEY=text)
            assert done.returncode == 2, done.stderr
            assert text not in done.stderr and "Traceback" not in done.stderr and "key" in done.stderr
    kept = kvarn_inside("models", "--url", "http://127.0.0.1:1", KVARN_API_KEY="secret\n")
    assert kept.returncode == 1 and "no server answers" in kept.stderr


def test_the_effective_configuration_does_not_show_keys(kvarn):
    shown = kvarn("config", KVARN_AUTH__API_KEYS='["top-secret"]').stdout
    assert "top-secret" not in shown and "[secret]" in shown


@pytest.mark.parametrize("url", ["postgresql://kvarn:top-secret@a:5432,b/kvarn", "postgresql://kvarn:top-s/ecr@et@a/k"])
def test_the_effective_configuration_does_not_show_passwords(kvarn, url):
    redis = "redis://:top-secret@host:6379/0?password=top-secret"
    shown = kvarn("config", KVARN_STORE__URL=url, KVARN_LIMITS__REDIS_URL=redis).stdout
    assert "top-s" not in shown and "et@" not in shown
    assert "postgresql://kvarn:[password]@a" in shown and "redis://:[password]@host:6379/0" in shown
