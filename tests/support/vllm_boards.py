"""Expressions of the Grafana boards that vLLM and its production stack publish."""

from __future__ import annotations

MODEL, ALL = '{model_name="m"}', '{model_name=~"m"}'
REQUESTS = (
    *("decode_time_seconds", "prefill_time_seconds", "queue_time_seconds", "inference_time_seconds"),
    *("max_num_generation_tokens", "params_max_tokens", "params_n"),
)
BUCKETS = ("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds")
EXPRESSIONS = [
    # vLLM's performance_statistics
    *(f"rate(vllm:{name}_sum[5m]) / rate(vllm:{name}_count[5m])" for name in BUCKETS),
    *(f"histogram_quantile(0.99, sum by(le) (rate(vllm:{name}_bucket[5m])))" for name in BUCKETS),
    "rate(vllm:generation_tokens_total[5m])",
    "rate(vllm:prompt_tokens_total[5m])",
    "rate(vllm:iteration_tokens_total_count[5m])",
    # vLLM's query_statistics
    f"sum by (model_name) (rate(vllm:request_success_total{ALL}[5m]))",
    f"histogram_quantile(0.5, sum by(le, model_name) (rate(vllm:e2e_request_latency_seconds_bucket{ALL}[5m])))",
    f"sum by (le, model_name) (rate(vllm:request_prompt_tokens_bucket{ALL}[5m]))",
    f"sum(rate(vllm:prompt_tokens_total{ALL}[5m])) / sum(rate(vllm:request_success_total{ALL}[5m]))",
    f"sum by (model_name) (rate(vllm:generation_tokens_total{ALL}[5m]))",
    # the production stack's
    "avg(vllm:request_time_per_output_token_seconds_sum) / avg(vllm:request_time_per_output_token_seconds_count)",
    *(f"router_{name}_usage_percent" for name in ("cpu", "disk", "memory")),
    "sum(max by (server) (vllm:healthy_pods_total))",
    "vllm:current_qps",
    "vllm:gpu_prefix_cache_hits_total / vllm:gpu_prefix_cache_queries_total",
    f"vllm:gpu_cache_usage_perc{MODEL}",
    f"vllm:kv_cache_usage_perc{MODEL} + vllm:num_requests_running{MODEL} + vllm:num_requests_waiting{MODEL}",
    *(f"rate(vllm:request_{name}_sum{MODEL}[5m])" for name in REQUESTS),
    f"sum by(finished_reason) (increase(vllm:request_success_total{MODEL}[5m]))",
    f"sum by(le) (increase(vllm:request_generation_tokens_bucket{MODEL}[5m]))",
    f"histogram_quantile(0.99, sum by(le) (rate(vllm:request_params_max_tokens_bucket{MODEL}[5m])))",
    # what vLLM shows where KV blocks are offloaded
    *(f"rate(vllm:kv_offload_{name}_total{MODEL}[5m])" for name in ("total_bytes", "total_time")),
]
"""Selectors of the boards, their variables replaced: vllm-project/vllm at 5961e8d3 and 030ea52e, production-stack at
a6c01db0."""
