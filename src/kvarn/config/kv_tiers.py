"""Settings of KV blocks kept beyond the engine's cache."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from kvarn.config.section import Section


class KVTiersConfig(Section):
    """Blocks kept in memory and on disk, for prompts that begin with the same tokens. See docs/guides/kv_tiers.md."""

    host_gib: float = Field(1.0, gt=0)
    """Memory for blocks in GiB, beside the KV cache. Blocks on disk are read into it, and blocks wait in it to be
    written."""

    disk_gib: float = Field(0.0, ge=0)
    """Disk space for blocks in GiB. They are still there when the server is started again. 0: none are kept on disk."""

    directory: str | None = Field(None, min_length=1)
    """Directory of the blocks on disk. Each model has a directory of its own in it, which one engine uses at a time."""

    tenant_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the memory, and of the disk space, that the blocks of one organisation may take."""

    encryption_key_file: str | None = Field(None, min_length=1)
    """File with the master key: 32 random bytes in base64 (`openssl rand -base64 32`). Blocks on disk are then
    encrypted, each organisation's with a key of its own. The file may hold several, one a line: the first protects
    new ones. Needs `kvarn[encryption]`. Default: not encrypted."""

    @model_validator(mode="after")
    def _disk_has_a_directory(self) -> KVTiersConfig:
        if self.disk_gib and self.directory is None:
            raise ValueError("disk_gib needs directory, where the blocks are kept")
        return self
