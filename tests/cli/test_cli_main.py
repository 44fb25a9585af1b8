from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import yaml

import kvarn as package
from kvarn.cli.configure import configure
from kvarn.cli.options import ServeOptions
from kvarn.config.load import ConfigError


def test_help_lists_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom kvarn.cli.main import main\nsys.argv = ['kvarn', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'fastapi', 'pydantic', 'uvicorn', 'zmq', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(command in output for command in ("serve", "bench", "config", "version"))
    assert "HEAVY []" in output


def test_the_gateway_imports_nothing_that_it_rarely_needs():
    heavy = {"torch", "transformers", "alembic", "jinja2", "ray", "aiokafka", "redis", "asyncpg"}
    code = f"import sys, kvarn.cli.serve, kvarn.gateway.app; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_version_is_the_packages(kvarn):
    assert kvarn("version").stdout == f"kvarn {package.__version__}\n"
    assert kvarn("--version").stdout == f"kvarn {package.__version__}\n"


def test_the_shell_completes_commands_and_flags():
    code = "import sys; sys.argv = ['kvarn']; from kvarn.cli.main import main; main()"

    def complete(words: str) -> str:
        asked = {"_KVARN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **asked}).stdout

    assert complete("kvarn ser").split() == ["serve"]
    assert complete("kvarn serve --max-mo").split() == ["--max-model-len"]


def test_config_prints_what_is_effective(kvarn, tmp_path):
    file = tmp_path / "kvarn.yaml"
    file.write_text("gateway: {port: 9001}\n")
    done = kvarn("config", "--config", str(file), KVARN_GATEWAY__HOST="::1")
    shown = yaml.safe_load(done.stdout)
    assert (shown["gateway"]["port"], shown["gateway"]["host"]) == (9001, "::1")
    assert shown["models"][0]["name"] == "kvarn-demo"


def test_bench_is_forwarded_with_its_own_help(kvarn):
    done = kvarn("bench", "--help")
    assert done.returncode == 0 and "--concurrency" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "nonsense"], "NAME=PATH"),
        (["--model", "a=kvarn-demo", "--model", "a=kvarn-demo"], "share the name"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
        (["--port", "99999"], "gateway.port"),
        (["--kv-cache-gib", "-1"], "kv_cache_gib"),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_line_and_status_2(kvarn_inside, arguments, says):
    done = kvarn_inside("serve", *arguments)
    assert done.returncode == 2
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_model_that_does_not_exist_is_one_clear_line_and_status_2(kvarn):
    done = kvarn("serve", "./no-such-directory")
    assert done.returncode == 2 and "no-such-directory" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_taken_port_is_one_clear_line_and_status_2(kvarn):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = kvarn("serve", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"error: 127.0.0.1:{port} is taken by another process: stop it, or choose another port with --port "
        "(0 takes a free one)"
    )


def test_models_on_the_command_line_replace_the_configured_ones(tmp_path):
    file = tmp_path / "kvarn.yaml"
    file.write_text("models: [{name: configured, path: /x, threads: 1}]\n")
    named = configure(
        ServeOptions(config=file, model="owner/name", named=["chat=/models/a"], flags={"--dtype": "float32"}), print
    )
    assert [(m.name, m.path, m.dtype) for m in named.models] == [
        ("owner/name", "owner/name", "float32"),
        ("chat", "/models/a", "float32"),
    ]
    kept = configure(ServeOptions(config=file, flags={"--max-model-len": 512}), print)
    assert [(m.name, m.threads, m.max_context_length) for m in kept.models] == [("configured", 1, 512)]


def test_a_directory_is_served_under_its_own_name(tmp_path):
    directory = tmp_path / "llama"
    directory.mkdir()
    assert configure(ServeOptions(model=f"{directory}/"), print).models[0].name == "llama"


def test_a_name_without_a_path_is_refused():
    with pytest.raises(ConfigError, match="NAME=PATH"):
        configure(ServeOptions(named=["chat="]), print)
