"""A checkpoint's fingerprint: the same for the same model, another for another."""

from __future__ import annotations

from pathlib import Path

from kvarn.text.checkpoint import checkpoint_fingerprint


def write(directory: Path, weights: bytes, config: str = "{}") -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(config)
    (directory / "model.safetensors").write_bytes(weights)
    (directory / "README.md").write_text(str(directory))
    return directory


def test_a_copy_has_the_same_fingerprint_and_anything_else_another(tmp_path: Path) -> None:
    weights = bytes(range(256)) * 40_000  # 10 MB: more than is read
    original = checkpoint_fingerprint(write(tmp_path / "a", weights))
    assert len(original) == 16
    assert checkpoint_fingerprint(write(tmp_path / "b", weights)) == original
    trained = bytes(255 - byte for byte in weights)
    others = {
        checkpoint_fingerprint(write(tmp_path / "c", trained)),
        checkpoint_fingerprint(write(tmp_path / "d", weights[:-1])),
        checkpoint_fingerprint(write(tmp_path / "e", weights, config='{"rope_theta": 1}')),
    }
    assert len(others | {original}) == 4


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    weights = bytearray(200_000)
    before = checkpoint_fingerprint(write(tmp_path / "a", bytes(weights)))
    weights[123_456] = 1
    assert checkpoint_fingerprint(write(tmp_path / "b", bytes(weights))) != before
