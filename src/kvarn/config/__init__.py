"""The whole configuration of Kvarn: one documented, strict model.

This room holds no behaviour beyond reading and checking: a field is documented where it is defined, and
`docs/configuration.md` is generated from these docstrings. Unknown keys are errors.
"""

from kvarn.config.load import ConfigError, load_config
from kvarn.config.schema import EngineConfig, GatewayConfig, KvarnConfig, ModelConfig, ReplicaConfig

__all__ = ["ConfigError", "EngineConfig", "GatewayConfig", "KvarnConfig", "ModelConfig", "ReplicaConfig", "load_config"]
