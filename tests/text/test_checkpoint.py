from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from kvarn.text.chat_template import read_template
from kvarn.text.checkpoint import resolve_checkpoint, resolve_tokenizer
from kvarn.text.config_files import read_generation_config
from kvarn.text.errors import CheckpointError
from kvarn.text.local_path import local_path


def checkpoint_at(directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_an_existing_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    directory = checkpoint_at(tmp_path / "model")
    assert resolve_checkpoint(str(directory)) == directory


def test_a_directory_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_checkpoint(str(tmp_path))


def test_a_tokenizer_is_downloaded_without_weights_and_needs_no_config(tmp_path, monkeypatch):
    patterns: list[str] = []

    def download(repository: str, **options: Any) -> str:
        patterns.extend(options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        resolve_tokenizer("owner/name")
    (tmp_path / "tokenizer.json").touch()
    assert resolve_tokenizer("owner/name") == resolve_tokenizer(str(tmp_path)) == tmp_path
    assert "*.json" in patterns and "*.safetensors" not in patterns


@pytest.mark.parametrize("path", ["/no/such/place", "./nowhere", "nowhere", "a/b/c"])
def test_what_is_neither_directory_nor_hub_id_is_explained(path: str) -> None:
    with pytest.raises(CheckpointError, match="kvarn-demo"):
        resolve_checkpoint(path)


@pytest.mark.parametrize("name", ["kvarn-demo", "kvarn-demo-draft", "kvarn-demo-eagle3", "kvarn-demo-rerank"])
def test_a_packaged_model_is_found_by_its_name_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    directory = resolve_checkpoint(name)
    assert (directory.parent.name, directory.name) == ("assets", name)


def test_a_hub_id_is_downloaded_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = checkpoint_at(tmp_path / "snapshot", architectures=["LlamaForCausalLM"])
    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    seen: list[tuple[str, float]] = []
    assert resolve_checkpoint("owner/name@v1", progress=lambda *step: seen.append(step)) == directory
    assert (asked["repository"], asked["revision"]) == ("owner/name", "v1")
    assert set(asked["allow_patterns"]) == {"*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"}
    assert [fraction for _, fraction in seen] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ({"architectures": ["FancyForCausalLM"]}, "FancyForCausalLM"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "Gemma3ForConditionalGeneration",
        ),
        ({"model_type": "fancy"}, "fancy"),
        ({"architectures": ["Qwen3Model"]}, None),
        ({"model_type": "qwen3"}, None),
        ({"architectures": ["XLMRobertaForSequenceClassification"]}, None),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, None),
    ],
)
def test_of_a_hub_id_config_json_comes_first(tmp_path, monkeypatch, config, unknown):
    asked: list[list[str]] = []

    def download(repository: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        return str(checkpoint_at(tmp_path / "snapshot", **config))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    if unknown is None:
        resolve_checkpoint("owner/name")
        assert "*.safetensors" in asked[1]
    else:
        with pytest.raises(CheckpointError, match=f"'{unknown}' in the config.json of owner/name is not supported"):
            resolve_checkpoint("owner/name")
        assert len(asked) == 1
    assert asked[0] == ["config.json"]


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repository: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match="hf download owner/name"):
        resolve_checkpoint("owner/name")


@pytest.mark.parametrize("failure", [httpx.ReadTimeout("slow"), OSError("disk full")])
def test_a_download_that_breaks_off_says_so(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def download(repository: str, **options: Any) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match="Cannot download 'owner/name'"):
        resolve_checkpoint("owner/name")


def test_importing_the_room_brings_no_heavy_library() -> None:
    heavy = ["torch", "transformers", "huggingface_hub", "tokenizers", "jinja2", "pydantic"]
    code = f"import sys, kvarn.text; sys.exit(str([name for name in {heavy} if name in sys.modules] or '') or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["a\0b", "\0", "~nobody-of-that-name/x", "\ud800"])
def test_what_no_file_can_be_called_is_no_path(text: str) -> None:
    for read in (local_path, resolve_checkpoint, read_template):
        with pytest.raises(CheckpointError, match="is no path"):
            read(text)
    with pytest.raises(CheckpointError, match="is no path"):
        read_generation_config(Path(), text)
