"""Room: models (see docs/architecture.md)."""

from kvarn.models.decoder import Decoder
from kvarn.models.encoder import Encoder
from kvarn.models.errors import ModelError, UnsupportedModelError
from kvarn.models.load import load_model
from kvarn.models.spec import DecoderSpec, EncoderSpec, kv_bytes_per_token

__all__ = [
    "Decoder",
    "DecoderSpec",
    "Encoder",
    "EncoderSpec",
    "ModelError",
    "UnsupportedModelError",
    "kv_bytes_per_token",
    "load_model",
]
