"""Decoders and encoders driven by configuration: a family is data."""

from kvarn.models.decoder import Decoder
from kvarn.models.encoders.causal import CausalEncoder
from kvarn.models.encoders.encoder import Encoder
from kvarn.models.load import load_model
from kvarn.specs.errors import ModelError, UnsupportedModelError
from kvarn.specs.spec import DecoderSpec, EncoderSpec

__all__ = [
    "CausalEncoder",
    "Decoder",
    "DecoderSpec",
    "Encoder",
    "EncoderSpec",
    "ModelError",
    "UnsupportedModelError",
    "load_model",
]
