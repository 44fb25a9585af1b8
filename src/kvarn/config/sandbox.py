"""Sandboxes for documents and for code that models write."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class SandboxConfig(Section):
    """Programs in bubblewrap: parsers of documents, and the code interpreter."""

    parse_without: bool = False
    """Whether PDF, HTML, DOCX and XLSX are parsed without a sandbox where none can be had: a file that takes over its
    parser then may do what the server may. Text, Markdown, CSV and JSON need no sandbox. The code interpreter never
    runs without one."""

    code_memory_mib: int = Field(1024, ge=128, le=64 * 1024)
    """Memory of one container of the code interpreter: the most that a request's `memory_limit` may ask for."""

    code_files_mib: int = Field(64, ge=1, le=4096)
    """Size of all files of one container; they are in memory while it runs."""

    code_timeout_s: float = Field(30.0, gt=0, le=600)
    """Seconds that one piece of code may run; its container's variables are lost then."""

    code_idle_s: float = Field(1200.0, ge=60, le=86_400)
    """Seconds after its last use after which a container expires, and its files with it."""

    code_containers: int = Field(8, ge=1, le=1024)
    """Containers whose interpreters are in memory at once, of all tenants; one tenant has half of them at most. The
    one that has been idle longest makes room: it keeps its files and loses its variables."""

    code_packages: str | None = Field(None, min_length=1)
    """Folder of packages that code may import, made by `kvarn sandbox install`. Default: `code_packages` in
    `data_dir`, if it is there."""
