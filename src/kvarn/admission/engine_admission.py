"""Admission to one engine as its model's configuration has it: rules, load, and the demand of a request."""

from __future__ import annotations

from kvarn.admission.controller import AdmissionController, Rules
from kvarn.admission.demand import Demand
from kvarn.admission.engine_load import EngineLoad
from kvarn.admission.traffic import Traffic
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.wire.messages import ModelCard

POLL_S = 0.01
"""Period of looks at waiting requests. An end is noticed at once; this is for the prompts that an engine has
computed meanwhile, and for those that wait too long."""


class EngineAdmission:
    """The controller of one engine. `card`: what the engine has told of itself."""

    def __init__(self, config: KvarnConfig, model: ModelConfig, card: ModelCard | None) -> None:
        self.slo = slo = config.slo_of(model)
        rules = Rules(
            ttft_target_s=slo.ttft_target_s,
            tpot_target_s=slo.tpot_target_s,
            load_shedding=config.sheds_load(model),
            max_queue=config.admission.max_queue,
            max_queue_s=config.admission.max_queue_s,
        )
        engine = model.engine
        if card is not None and card.max_num_seqs:  # perhaps fewer than configured
            engine = engine.model_copy(update={"max_num_seqs": card.max_num_seqs})
        self._traffic = Traffic(engine.input_token_weight, engine.output_token_weight)
        load = EngineLoad(engine, slo.tpot_target_s)
        self.controller = AdmissionController(rules, load, self._traffic, engine.priority_ageing_s)

    def demand(
        self,
        *,
        tenant: str,
        prompt_tokens: int,
        max_output_tokens: int,
        arrival_s: float,
        weight: float = 1.0,
        priority: int = 0,
        sequences: int = 1,
        cached_tokens: int | None = None,
    ) -> Demand:
        """The capacity of this engine that a request would need. `cached_tokens`: of its prompt, where it is known."""
        expected = self._traffic.expected_prompt(prompt_tokens)
        return Demand(
            tenant=tenant,
            weight=weight,
            priority=priority,
            prompt_tokens=expected if cached_tokens is None else max(1.0, prompt_tokens - cached_tokens),
            output_tokens=self._traffic.expected_output(tenant, max_output_tokens),
            sequences=sequences,
            arrival_s=arrival_s,
        )
