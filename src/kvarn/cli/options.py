"""The flags of `kvarn serve`. Each is declared once, as a field of `ServeOptions`, with the setting that it sets.

To add a flag, add the setting to `kvarn.config` and a field here:

    port: Annotated[int | None, Flag("gateway.port", "Port to listen on.", panel=SERVER, default="8000")] = None

`models.` in front of a setting stands for every served model. The names of a flag come after the help where they are
not the field's own (`"--max-model-len"`). `parser` turns the text into the setting's value; several flags may set one
setting.

Imported by `kvarn --help`: nothing heavy may be imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer.models import OptionInfo

from kvarn.cli.values import absolute_path, byte_count_in_gib, dtype, generation_config, human_int, origins, tool_format

MODEL = "Model"
SERVER = "Server"
ENGINE = "Engine"
LOGS = "Logs"


class Flag(OptionInfo):
    """An option that sets a setting.

    Args:
        setting: Its path in the configuration, such as `gateway.port`; `models.` is each served model.
        text: The help, one sentence.
        names: Of the option; none: the field's.
        panel: Under which heading `--help` shows it.
        default: The setting's default, as `--help` shows it.
        join: Turns the texts of a repeatable option into the setting's value.
        more: Arguments of `typer.Option`.
    """

    def __init__(
        self,
        setting: str,
        text: str,
        *names: str,
        panel: str,
        default: str | None = None,
        join: Callable[[list[str]], Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(
            default=..., param_decls=names, help=text, show_default=default or False, rich_help_panel=panel, **more
        )
        self.setting = setting
        self.join = join


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line said; None where it said nothing."""

    model: Annotated[
        str | None,
        typer.Argument(help="Checkpoint directory, hub id (owner/name) or packaged model.", show_default="kvarn-demo"),
    ] = None
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/configuration.md.")] = None
    named: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", metavar="NAME=PATH", help="A model and its name; repeatable.", rich_help_panel=MODEL
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name clients use for the model; given again: an alias.",
            show_default="the directory's name",
            rich_help_panel=MODEL,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        Flag(
            "models.dtype",
            "Type of the weights: auto, bfloat16, float16 (half) or float32 (float).",
            panel=MODEL,
            default="auto",
            parser=dtype,
            metavar="TYPE",
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "int4"] | None,
        Flag("models.quantization", "Quantise plain weights at load.", panel=MODEL, default="no"),
    ] = None
    max_model_len: Annotated[
        int | None,
        Flag(
            "models.max_context_length",
            "Prompt and answer together, in tokens; 32k is 32,000, 32K is 32,768.",
            "--max-model-len",
            "--max-context-length",
            panel=MODEL,
            default="the checkpoint's",
            parser=human_int,
            metavar="TOKENS",
        ),
    ] = None
    packed_cache: Annotated[
        str | None,
        Flag(
            "models.packed_cache",
            "Directory of packed weights, for quick starts.",
            panel=MODEL,
            default="none",
            parser=absolute_path,
            metavar="PATH",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag(
            "models.tokenizer",
            "Directory or hub id of the tokenizer and its chat template.",
            panel=MODEL,
            default="the checkpoint's",
            metavar="PATH",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Flag(
            "models.chat_template",
            "Path of a Jinja chat template, or the template itself.",
            panel=MODEL,
            default="the checkpoint's",
            metavar="TEXT",
        ),
    ] = None
    generation_config: Annotated[
        str | None,
        Flag(
            "models.generation_config",
            "Sampling defaults: auto (the checkpoint's generation_config.json), none or vllm (OpenAI's), "
            "or a directory with that file.",
            panel=MODEL,
            default="auto",
            parser=generation_config,
            metavar="TEXT",
        ),
    ] = None
    seed: Annotated[
        int | None,
        Flag(
            "models.seed",
            "Makes requests without a seed repeatable: the same requests in the same order, the same answers.",
            panel=MODEL,
            default="random seeds",
        ),
    ] = None
    tool_call_parser: Annotated[
        str | None,
        Flag(
            "models.tool_format",
            "How the model writes tool calls: hermes (also Qwen's), llama3_json, mistral or pythonic.",
            panel=MODEL,
            default="read from its chat template",
            parser=tool_format,
            metavar="NAME",
        ),
    ] = None
    host: Annotated[str | None, Flag("gateway.host", "Address to listen on.", panel=SERVER, default="127.0.0.1")] = None
    port: Annotated[
        int | None, Flag("gateway.port", "Port to listen on; 0 takes a free one.", panel=SERVER, default="8000")
    ] = None
    api_server_count: Annotated[
        int | None,
        Flag("gateway.api_server_count", "Gateway processes that serve the port.", panel=SERVER, default="1"),
    ] = None
    api_key: Annotated[
        list[str] | None,
        Flag(
            "auth.api_keys",
            "Ask every request for one of these keys, which use models and administer nothing; repeatable. One key may "
            "come from KVARN_API_KEY.",
            panel=SERVER,
            default="none asked for on a loopback address",
            metavar="KEY",
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        Flag(
            "gateway.allowed_origins",
            "Origins of web pages that may use the server from a browser (CORS), or *; repeatable, or a JSON list.",
            panel=SERVER,
            default="pages of this machine",
            join=origins,
            metavar="ORIGIN",
        ),
    ] = None
    root_path: Annotated[
        str | None,
        Flag(
            "gateway.root_path",
            "Path prefix under which a proxy publishes the server, such as /llm.",
            panel=SERVER,
            default="none",
        ),
    ] = None
    ssl_certfile: Annotated[
        str | None,
        Flag(
            "gateway.ssl_certfile",
            "PEM file of the certificate: the server speaks HTTPS.",
            panel=SERVER,
            default="none",
            metavar="PATH",
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        Flag(
            "gateway.ssl_keyfile",
            "PEM file of the certificate's key.",
            panel=SERVER,
            default="in the certificate's file",
            metavar="PATH",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Flag("models.engine.max_num_seqs", "Sequences that may run at once.", panel=ENGINE, default="256"),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Flag(
            "models.engine.token_budget",
            "Tokens computed in one step at most.",
            panel=ENGINE,
            default="2048",
            parser=human_int,
            metavar="TOKENS",
        ),
    ] = None
    prefix_caching: Annotated[
        bool | None,
        Flag(
            "models.engine.prefix_cache",
            "Reuse computed blocks for prompts that begin with the same tokens.",
            "--enable-prefix-caching/--no-enable-prefix-caching",
            panel=ENGINE,
            default="on",
        ),
    ] = None
    kv_cache_gib: Annotated[
        float | None,
        Flag("models.kv_cache_gib", "Memory of the KV cache in GiB.", panel=ENGINE, default="a tenth of the machine's"),
    ] = None
    kv_cache_memory_bytes: Annotated[
        float | None,
        Flag(
            "models.kv_cache_gib",
            "The same in bytes: 4294967296, 4G or 512M.",
            panel=ENGINE,
            parser=byte_count_in_gib,
            metavar="BYTES",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"] | None,
        Flag("models.kv_cache_dtype", "Type of cached keys and values.", panel=ENGINE, default="auto"),
    ] = None
    kernels: Annotated[
        Literal["auto", "cpu", "torch"] | None,
        Flag("models.kernels", "What multiplies.", panel=ENGINE, default="auto"),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        Flag("log_level", "What is logged.", panel=LOGS, default="info"),
    ] = None
    log_format: Annotated[
        Literal["text", "json"] | None,
        Flag("log_format", "Lines of key=value, or one JSON object a line.", panel=LOGS, default="text"),
    ] = None

    def settings(self) -> Iterator[tuple[str, str, Any]]:
        """The name of each flag that was given, the path of its setting, and the value."""
        for name, flag in flags().items():
            value = getattr(self, name)
            if value is not None:
                value = flag.join(value) if flag.join is not None else value
                yield (flag.param_decls or (f"--{name.replace('_', '-')}",))[0], flag.setting, value


def flags() -> dict[str, Flag]:
    """The flags that set a setting, by field of `ServeOptions`."""
    hints = get_type_hints(ServeOptions, include_extras=True)
    marks = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return {name: mark for name, mark in marks.items() if isinstance(mark, Flag)}


def takes_serve_options(command: Callable[[typer.Context, ServeOptions], None]) -> Callable[..., None]:
    """Give a command the flags of `ServeOptions`: typer reads a function's signature, so this makes one."""
    hints = get_type_hints(ServeOptions, include_extras=True)
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[field.name])
        for field in fields(ServeOptions)
    ]

    def run(context: typer.Context, **values: Any) -> None:
        command(context, ServeOptions(**values))

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
