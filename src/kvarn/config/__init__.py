"""The whole configuration of Kvarn: one documented, strict model.

This room holds no behaviour beyond reading and checking: a field is documented where it is defined, and
`docs/configuration.md` is generated from these docstrings. Unknown keys are errors.

`kvarn.config.load` is imported by name where a configuration is read: an engine process is given its part and starts
without the reader's libraries.
"""

from kvarn.config.schema import EngineConfig, GatewayConfig, KvarnConfig, ModelConfig, ReplicaConfig

__all__ = ["EngineConfig", "GatewayConfig", "KvarnConfig", "ModelConfig", "ReplicaConfig"]
