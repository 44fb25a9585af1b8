"""Encryption of blocks on disk: each tenant has a random key, which lies beside its blocks encrypted with a master key.

Deleting the file of a tenant's key makes every copy of its blocks unreadable, also one that outlives their deletion.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path

from kvarn.config.extras import missing_extra
from kvarn.kvstore.record import BadBlockError, KVStoreError

KEY_FILE = "key"
_NONCE_BYTES = 12
_KEY_BYTES = 32
OVERHEAD_BYTES = _NONCE_BYTES + 16
"""Bytes by which encrypted contents are longer: nonce and tag."""


class TenantKey:
    """Encrypts and decrypts one tenant's blocks with AES-256-GCM, a header being authenticated with its contents."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # an extra

        self._cipher = AESGCM(key)

    def encrypt(self, contents: bytes | memoryview, associated: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, contents, associated)

    def decrypt(self, stored: bytes | memoryview, associated: bytes) -> bytes:
        """Decrypted contents. Raises `BadBlockError` where it was not, with this key and these associated bytes."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], associated)
        except InvalidTag:
            raise BadBlockError("decryption") from None


class MasterKeys:
    """Protects tenants' keys with the first master key, and opens with any."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = [TenantKey(key) for key in keys]

    @classmethod
    def load(cls, path: Path) -> MasterKeys:
        """Read a file of keys, one a line. Raises `KVStoreError` where there are none, or the extra is missing."""
        if (missing := missing_extra("kv_tiers.encryption_key_file", "encryption")) is not None:
            raise KVStoreError(missing)
        try:
            keys = [base64.urlsafe_b64decode(line) for line in path.read_text(encoding="ascii").split()]
        except OSError as error:
            raise KVStoreError(
                f"cannot read the key file {path} (kv_tiers.encryption_key_file): {error.strerror}"
            ) from None
        except ValueError:
            keys = []
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise KVStoreError(
                f"{path} (kv_tiers.encryption_key_file) must hold keys, one a line: 32 random bytes in base64, such as "
                "`openssl rand -base64 32` gives"
            )
        return cls(keys)

    def open(self, directory: Path, tenant: bytes) -> TenantKey:
        """A tenant's key, from the file in its directory. Raises OSError, or `BadBlockError` where no master key opens
        it: it was damaged, or protected by one that is not in the file any more."""
        protected = (directory / KEY_FILE).read_bytes()
        for master in self._keys:
            try:
                return TenantKey(master.decrypt(protected, tenant))
            except BadBlockError:
                continue
        raise BadBlockError("key")

    def make(self, directory: Path, tenant: bytes) -> TenantKey:
        """A new key for a tenant, whose file is on disk when this returns."""
        key, draft = os.urandom(_KEY_BYTES), directory / f".{KEY_FILE}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._keys[0].encrypt(key, tenant))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(directory / KEY_FILE)
        return TenantKey(key)
