"""Kept prompts are sealed: who reads the database, or a copy of it, without the server's key reads nothing of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvarn.config.extras import missing_extra
from kvarn.config.schema import KvarnConfig
from kvarn.safety.errors import SafetyError
from kvarn.store.directories import data_dir, sync_directory

KEY_FILE = "prompts.key"


class Seal:
    """Seals with the first key and opens with any: a new key goes on top, an old one stays until nothing needs it."""

    def __init__(self, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, MultiFernet  # an extra

        self._fernet = MultiFernet([Fernet(key) for key in keys])

    @classmethod
    def load(cls, config: KvarnConfig, *, make: bool = True) -> Seal:
        """With the keys of the configured file. Where none is configured, one is made in `data_dir`, if need be, unless
        `make` is false. Raises `SafetyError`: the file cannot be read, or holds no keys; or `kvarn[encryption]` is not
        installed."""
        if (missing := missing_extra("keeping prompts", "encryption")) is not None:
            raise SafetyError(missing)
        path = key_path(config)
        try:
            if make and config.safety.prompt_key_file is None:
                _make_key(path)
            return cls(path.read_text(encoding="ascii").split())
        except OSError as error:
            raise SafetyError(f"cannot read the key file {path} (safety.prompt_key_file): {error.strerror}") from None
        except ValueError:  # UnicodeDecodeError among them
            raise SafetyError(
                f"{path} (safety.prompt_key_file) must hold Fernet keys, one a line: 32 bytes in URL-safe base64"
            ) from None

    def seal(self, plain: bytes) -> bytes:
        return self._fernet.encrypt(plain)

    def open(self, sealed: bytes) -> bytes:
        """Open what was sealed. Raises `SafetyError`: its key is not in the file, or it was tampered with."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            raise SafetyError("sealed with a key that is not in the key file, or changed since") from None


def key_path(config: KvarnConfig) -> Path:
    given = config.safety.prompt_key_file
    return data_dir(config) / KEY_FILE if given is None else Path(given).expanduser()


def _make_key(path: Path) -> None:
    """Make the file where it is missing, whole from the start: several gateways may begin at once."""
    from cryptography.fernet import Fernet

    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(Fernet.generate_key() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        path.hardlink_to(draft)
        sync_directory(path.parent)  # what is sealed with a key that was lost is lost
    except FileExistsError:
        return  # another gateway's: that one holds
    finally:
        draft.unlink()
