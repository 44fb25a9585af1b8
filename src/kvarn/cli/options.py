"""`kvarn serve` and its flags. A flag is a row of `FLAGS`; its type, help and default are those of its setting.

To add a flag, add the setting to `kvarn.config` and a row here. `models.` in front of a setting stands for every served
model. Several flags may set one setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from kvarn.cli import values
from kvarn.cli.application import COMMON, GroupedCommand, application, option, parameters_of, with_parameters
from kvarn.config.documentation import field_documents
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.fleet.launch.engine_process import EngineProcess

_HEADINGS = {
    "models.engine.": "Engine",
    "models.kv_": "KV cache",
    "models.lora.": "Adapters",
    "models.": "Model",
    "log_": "Logs",
    "": "Server",
}
"""Headings of `--help` by the beginning of a setting's path."""
_OPTIONAL_SECTIONS = ("models.kv_tiers.",)
"""They are there only where something in them is set: until then their defaults are not in force."""


@dataclass(frozen=True, slots=True)
class Flag:
    setting: str
    """Its path in the configuration, such as `gateway.port`; `models.` is each served model."""
    other_name: str | None = None
    parser: Callable[[str], Any] | None = None
    """From the flag's text to the setting's value."""
    metavar: str | None = None
    join: Callable[[list[str]], Any] | None = None
    """From the texts of a repeatable flag to the setting's value."""
    text: str | None = None
    """Help in place of the setting's."""

    @property
    def heading(self) -> str:
        """The heading of `--help` that it stands under, unless it is one of `COMMON_FLAGS`."""
        return next(heading for start, heading in _HEADINGS.items() if self.setting.startswith(start))

    @property
    def help(self) -> str:
        """The first sentence of the setting's documentation, unless the flag differs from it."""
        return self.text or re.split(r"(?<=\.)\s", self._documented()[1])[0]

    @property
    def default(self) -> str | None:
        """The setting's default as `--help` shows it: its value, or in words where that depends on something."""
        found, text = self._documented()
        if self.setting.startswith(_OPTIONAL_SECTIONS):
            return None
        if isinstance(found.default, bool):
            return "on" if found.default else "off"
        if found.default not in (None, "", ()) and not isinstance(found.default, Section):
            return str(found.default)
        in_words = re.search(r"Default: (.*?)\.(?:\s|$)", text)
        return in_words[1] if in_words else None

    @property
    def type(self) -> Any:
        annotation = self._documented()[0].annotation
        if get_origin(annotation) is not tuple and NoneType in get_args(annotation):
            annotation = next(part for part in get_args(annotation) if part is not NoneType)
        if self.parser is not None:
            return str
        return list[str] if get_origin(annotation) is tuple else annotation

    def _documented(self) -> tuple[FieldInfo, str]:
        *path, name = self.setting.split(".")
        section: type[Section] = KvarnConfig
        for part in path:
            annotation = section.model_fields[part].annotation
            candidates = (annotation, *get_args(annotation))
            section = next(each for each in candidates if isinstance(each, type) and issubclass(each, Section))
        return section.model_fields[name], field_documents(section)[name]


FLAGS = {
    "--dtype": Flag("models.dtype", parser=values.dtype, metavar="TYPE"),
    "--quantization": Flag("models.quantization"),
    "--max-model-len": Flag(
        "models.max_context_length",
        "--max-context-length",
        values.human_int,
        "TOKENS",
        text="Prompt and answer together, in tokens; 32k is 32,000, 32K is 32,768.",
    ),
    "--packed-cache": Flag("models.packed_cache", parser=values.packed_cache, metavar="PATH"),
    "--tokenizer": Flag("models.tokenizer", metavar="PATH"),
    "--chat-template": Flag("models.chat_template"),
    "--generation-config": Flag("models.generation_config", parser=values.generation_config, metavar="TEXT"),
    "--seed": Flag("models.seed"),
    "--tool-call-parser": Flag("models.tool_format", parser=values.tool_format, metavar="NAME"),
    "--reasoning-parser": Flag("models.reasoning_format", parser=values.reasoning_format, metavar="NAME"),
    "--kv-cache-gib": Flag("models.kv_cache_gib"),
    "--kv-cache-memory-bytes": Flag(
        "models.kv_cache_gib",
        parser=values.byte_count_in_gib,
        metavar="BYTES",
        text="Memory of the KV cache in bytes: 4294967296, 4G or 512M.",
    ),
    "--kv-cache-dtype": Flag("models.kv_cache_dtype"),
    "--kv-offloading-size": Flag("models.kv_tiers.host_gib", metavar="GIB"),
    "--kv-disk-size": Flag("models.kv_tiers.disk_gib", metavar="GIB"),
    "--kv-disk-directory": Flag("models.kv_tiers.directory", parser=values.absolute_path, metavar="PATH"),
    "--device": Flag("models.device"),
    "--gpu-memory-utilization": Flag("models.hardware.gpu_memory_utilization", metavar="SHARE"),
    "--kernels": Flag("models.kernels"),
    "--enable-lora": Flag("models.lora.enabled"),
    "--lora-modules": Flag(
        "models.adapters",
        metavar="NAME=PATH",
        join=values.lora_modules,
        text="A LoRA adapter to load with the model, as NAME=PATH or as JSON; repeatable.",
    ),
    "--lora-directories": Flag("models.lora.directories", metavar="PATH", join=values.absolute_paths),
    "--max-lora-rank": Flag("models.lora.max_rank"),
    "--max-cpu-loras": Flag("models.lora.max_cpu_loras"),
    "--tensor-parallel-size": Flag("models.tensor_parallel_size", "-tp"),
    "--pipeline-parallel-size": Flag("models.pipeline_parallel_size", "-pp"),
    "--prefill-context-parallel-size": Flag("models.prefill_context_parallel_size", "-pcp"),
    "--expert-parallel": Flag("models.expert_parallel", "--enable-expert-parallel"),
    "--replicas": Flag("models.replicas", "--data-parallel-size"),
    "--host": Flag("gateway.host"),
    "--port": Flag("gateway.port"),
    "--api-server-count": Flag("gateway.api_server_count"),
    "--api-key": Flag(
        "auth.api_keys",
        metavar="KEY",
        text="Require one of these keys, which use models and administer nothing; repeatable, or KVARN_API_KEY.",
    ),
    "--allowed-hosts": Flag("auth.allowed_hosts", metavar="NAME"),
    "--allowed-origins": Flag("gateway.allowed_origins", join=values.origins, metavar="ORIGIN"),
    "--root-path": Flag("gateway.root_path"),
    "--ssl-certfile": Flag("gateway.ssl_certfile", metavar="PATH"),
    "--ssl-keyfile": Flag("gateway.ssl_keyfile", metavar="PATH"),
    "--max-num-seqs": Flag("models.engine.max_num_seqs"),
    "--max-num-batched-tokens": Flag("models.engine.token_budget", parser=values.human_int, metavar="TOKENS"),
    "--enable-prefix-caching": Flag("models.engine.prefix_cache"),
    "--speculative-config": Flag(
        "models.speculation",
        parser=values.speculation,
        metavar="JSON",
        text="Speculative decoding: method (ngram, draft_model, none), model, num_speculative_tokens.",
    ),
    "--vllm-metric-names": Flag("gateway.vllm_metric_names"),
    "--otlp-traces-endpoint": Flag("traces.endpoint", metavar="URL"),
    "--log-level": Flag("log_level"),
    "--log-format": Flag("log_format"),
}
"""The flags that set a setting, by name."""

COMMON_FLAGS = (
    *("--max-model-len", "--dtype", "--quantization", "--device", "--gpu-memory-utilization"),
    *("--kv-cache-memory-bytes", "--max-num-seqs", "--tensor-parallel-size", "--replicas"),
    *("--tool-call-parser", "--reasoning-parser", "--speculative-config", "--lora-modules"),
    *("--host", "--port", "--api-key", "--log-level"),
)
"""Flags that people use first, which `--help` shows ahead of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The command line of `kvarn serve`; None where something was not given."""

    model: str | None = None
    config: Path | None = None
    named: list[str] | None = None
    """Models as NAME=PATH."""
    served_model_name: list[str] | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Values of `FLAGS` that were given, by name."""

    def settings(self) -> Iterator[tuple[str, str, Any]]:
        for name, value in self.flags.items():
            flag = FLAGS[name]
            yield name, flag.setting, value if flag.join is None else flag.join(value)


def _serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="Checkpoint directory, hub id (owner/name) or packaged model.", show_default="kvarn-demo"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file; see docs/reference/configuration.md.")
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME=PATH", help="A model and its name; repeatable."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name clients use for the model; given again: an alias."),
    ] = None,
    **flags: Any,
) -> None:
    """Serve models behind an OpenAI-compatible API. Without arguments: kvarn-demo at http://127.0.0.1:8000."""
    from kvarn.cli.serve import run_server

    given = {name: value for name in FLAGS if (value := flags[_variable(name)]) is not None}
    options = ServeOptions(model=model, config=config, named=named, served_model_name=served_model_name, flags=given)
    engine = context.obj if isinstance(context.obj, EngineProcess) else None
    raise typer.Exit(run_server(options, engine))


def _variable(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _parameter(name: str, flag: Flag) -> Parameter:
    own_name = f"{name}/--no-{name.removeprefix('--')}" if flag.type is bool else name
    info = typer.Option(
        *([own_name, flag.other_name] if flag.other_name else [own_name]),
        help=f"{flag.help} [default: {flag.default}]" if flag.default else flag.help,
        show_default=False,
        rich_help_panel=COMMON if name in COMMON_FLAGS else flag.heading,
        parser=flag.parser,
        metavar=flag.metavar,
    )
    return option(_variable(name), Annotated[flag.type | None, info])


app = application()
_ordered = {name: FLAGS[name] for name in (*COMMON_FLAGS, *FLAGS)}
app.command("serve", cls=GroupedCommand)(
    with_parameters(_serve, [*parameters_of(_serve), *(_parameter(*item) for item in _ordered.items())], _serve)
)
