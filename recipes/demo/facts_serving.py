"""Facts about serving large language models in general."""

from __future__ import annotations

from recipes.demo.facts import Fact

SERVING_FACTS: tuple[Fact, ...] = (
    Fact(
        "ttft",
        "TTFT is the time to first token: how long a client waits from sending a request until the first "
        "token of the answer arrives.",
        ("TTFT", "time to first token"),
        why="TTFT is what a person feels as the system being awake: past about half a second the wait is noticed.",
    ),
    Fact(
        "tpot",
        "TPOT is the time per output token: the mean gap between tokens after the first one.",
        ("TPOT", "time per output token"),
        why="TPOT sets how smoothly an answer streams: it should stay faster than a person reads.",
    ),
    Fact(
        "itl",
        "ITL is the inter-token latency: the length of one single gap between two output tokens.",
        ("ITL", "inter-token latency"),
    ),
    Fact(
        "goodput",
        "Goodput is the number of requests per second that meet both latency targets, TTFT and TPOT.",
        ("goodput",),
        why="Throughput that misses its latency targets is waste, so goodput is the honest measure.",
    ),
    Fact(
        "throughput",
        "Throughput is the number of tokens or requests a system finishes per second, whatever their latency.",
        ("throughput",),
    ),
    Fact(
        "goodput_vs_throughput",
        "Throughput counts all finished work; goodput counts only the requests that met their latency targets.",
        (),
        (
            "What is the difference between goodput and throughput?",
            "How does goodput differ from throughput?",
            "Goodput versus throughput?",
            "Is goodput the same as throughput?",
            "Compare goodput and throughput.",
        ),
    ),
    Fact(
        "prefill",
        "Prefill is the first phase of a request: the whole prompt is read in one pass, which is compute-bound.",
        ("prefill", "the prefill phase"),
        why="Prefill decides the TTFT, since no token can be sent before the prompt has been read.",
    ),
    Fact(
        "decode",
        "Decode is the second phase of a request: the model makes one token per pass, bound by memory bandwidth.",
        ("decode", "the decode phase"),
        why="Most of a request's life is decode, and each pass streams all the weights, so batching it pays.",
    ),
    Fact(
        "prefill_vs_decode",
        "Prefill is compute-bound and reads the prompt at once; decode is bandwidth-bound and "
        "makes one token at a time.",
        (),
        (
            "What is the difference between prefill and decode?",
            "How do prefill and decode differ?",
            "Prefill versus decode?",
            "Compare prefill with decode.",
            "What are the two phases of a request?",
        ),
    ),
    Fact(
        "kv_cache",
        "The KV cache holds the keys and values of past tokens, so that each new token need not "
        "recompute the whole prompt.",
        ("the KV cache", "KV cache"),
        why="The KV cache, not arithmetic, limits how many requests can run at the same time.",
    ),
    Fact(
        "kv_size",
        "The KV cache per token is 2 x layers x KV heads x head dimension x bytes per value.",
        (),
        (
            "How large is the KV cache per token?",
            "How do I compute the size of the KV cache?",
            "What is the formula for the KV cache size?",
            "How many bytes does one token take in the KV cache?",
            "Give me the KV cache formula.",
        ),
    ),
    Fact(
        "paged_attention",
        "Paged attention stores the KV cache in small fixed blocks found through a block table, "
        "as an operating system pages memory.",
        ("paged attention", "paged KV cache", "paging the KV cache"),
        why="Paging wastes almost no memory, because a request owns only the blocks it has begun to fill.",
    ),
    Fact(
        "block",
        "A block is a fixed piece of the KV cache that holds the keys and values of 16 tokens.",
        ("a block", "a KV block"),
    ),
    Fact(
        "block_size",
        "A block holds 16 tokens.",
        (),
        (
            "How many tokens fit in a block?",
            "How large is a KV block?",
            "What is the block size?",
            "How many tokens does a block hold?",
            "What block size does Kvarn use?",
        ),
    ),
    Fact(
        "block_table",
        "A block table lists, for one request, which KV blocks hold its tokens and in what order.",
        ("a block table", "the block table"),
    ),
    Fact(
        "slot_mapping",
        "The slot mapping tells the kernels into which cache slot each new token's keys and values are written.",
        ("the slot mapping", "slot_mapping"),
    ),
    Fact(
        "prefix_cache",
        "A prefix cache keeps the KV blocks of earlier prompts, so that a new prompt with the same "
        "beginning skips that part of prefill.",
        ("the prefix cache", "prefix caching", "a prefix cache"),
        why="Chats, few-shot prompts and tool loops repeat their beginning, so a prefix cache cuts TTFT a lot.",
    ),
    Fact(
        "radix_tree",
        "A radix tree stores token prefixes as shared paths, so that the longest cached prefix of a "
        "prompt is found by one walk from the root.",
        ("a radix tree", "the radix tree"),
    ),
    Fact(
        "continuous_batching",
        "Continuous batching rebuilds the batch at every step: a finished request leaves at "
        "once and a waiting one joins at once.",
        ("continuous batching",),
        why="Lengths vary a thousandfold, so a static batch would leave most of its places idle.",
    ),
    Fact(
        "static_batching",
        "Static batching runs a fixed group of requests until the longest one ends, so short "
        "requests wait and places stand idle.",
        ("static batching",),
    ),
    Fact(
        "chunked_prefill",
        "Chunked prefill cuts a long prompt into pieces and mixes them with decode steps, so that "
        "running requests keep their TPOT.",
        ("chunked prefill",),
        why="Without chunks, one long prompt would stall every stream that is already running.",
    ),
    Fact(
        "token_budget",
        "The token budget is the most tokens that one step may process, prefill and decode together.",
        ("the token budget", "a token budget"),
    ),
    Fact(
        "step",
        "A step is one forward pass of the model over everything the scheduler planned.",
        ("a step", "an engine step"),
    ),
    Fact(
        "preemption",
        "Preemption takes the KV blocks from a running request when memory runs short; it is resumed "
        "later by recompute or swap.",
        ("preemption", "preempting a request"),
    ),
    Fact(
        "swap",
        "Swapping moves the KV blocks of a preempted request to host memory and brings them back when there is room.",
        ("swapping", "KV swap"),
    ),
    Fact(
        "recompute",
        "Recompute drops the KV blocks of a preempted request and runs its tokens through prefill again "
        "when it resumes.",
        ("recompute", "preemption by recompute"),
    ),
    Fact(
        "copy_on_write",
        "With copy-on-write, requests share a KV block until one of them must change it; only then "
        "is the block copied.",
        ("copy-on-write",),
    ),
    Fact(
        "reference_count",
        "A reference count says how many requests use a KV block; the block may be evicted when "
        "the count falls to zero.",
        ("a reference count", "the reference count of a block"),
    ),
    Fact("lru", "LRU eviction removes what was least recently used when room is needed.", ("LRU", "LRU eviction")),
    Fact(
        "speculative_decoding",
        "In speculative decoding a cheap method proposes several tokens and the large model "
        "verifies them in one pass, with the same output distribution.",
        ("speculative decoding", "speculation"),
        why="Decode is bound by memory, so checking several tokens costs about as much as making one.",
    ),
    Fact(
        "draft_model",
        "A draft model is a small, quick model that proposes tokens for the large model to verify.",
        ("a draft model", "the draft model"),
    ),
    Fact(
        "acceptance_rate",
        "The acceptance rate is the share of proposed tokens that the large model agrees with.",
        ("the acceptance rate", "acceptance rate"),
    ),
    Fact(
        "ngram",
        "An n-gram proposer looks for the last few tokens earlier in the text and proposes what followed them there.",
        ("an n-gram proposer", "n-gram speculation"),
    ),
    Fact(
        "proposal",
        "A proposal is the short run of tokens that a draft suggests and the large model verifies.",
        ("a proposal", "a speculative proposal"),
    ),
    Fact(
        "quantisation",
        "Quantisation stores weights or cache in fewer bits, such as int8 or int4, to save memory "
        "and bandwidth at a small loss of quality.",
        ("quantisation", "quantization"),
    ),
    Fact("int8", "Int8 stores each weight in one byte, half the size of bf16.", ("int8", "int8 quantisation")),
    Fact("fp8", "FP8 is an eight-bit floating point format for weights, activations or the KV cache.", ("FP8",)),
    Fact(
        "bf16",
        "BF16 is a sixteen-bit floating point format with the range of fp32 and less precision.",
        ("bf16", "bfloat16"),
    ),
    Fact(
        "gptq",
        "GPTQ is a method that quantises weights layer by layer and corrects the error it makes as it goes.",
        ("GPTQ",),
    ),
    Fact("awq", "AWQ quantises weights while protecting the channels that matter most to the activations.", ("AWQ",)),
    Fact(
        "lora",
        "LoRA adds two small low-rank matrices beside a weight, so that a model is adapted without changing the base.",
        ("LoRA", "low-rank adaptation"),
    ),
    Fact(
        "adapter",
        "An adapter is a small set of LoRA weights that changes the behaviour of a base model.",
        ("an adapter", "a LoRA adapter"),
    ),
    Fact(
        "multi_lora",
        "Multi-LoRA serving runs many adapters over one base model in the same batch.",
        ("multi-LoRA", "multi-LoRA serving"),
        why="A hundred fine-tuned variants then cost little more memory than one model.",
    ),
    Fact(
        "tensor_parallelism",
        "Tensor parallelism splits each weight matrix across devices, which all work on the "
        "same layer at the same time.",
        ("tensor parallelism", "TP"),
    ),
    Fact(
        "pipeline_parallelism",
        "Pipeline parallelism gives each device a range of layers and passes micro-batches "
        "from one device to the next.",
        ("pipeline parallelism", "PP"),
    ),
    Fact(
        "data_parallelism",
        "Data parallelism runs whole copies of the model side by side, each with its own requests.",
        ("data parallelism", "DP"),
    ),
    Fact(
        "expert_parallelism",
        "Expert parallelism spreads the experts of a mixture-of-experts model over devices and "
        "sends each token to its experts.",
        ("expert parallelism", "EP"),
    ),
    Fact(
        "context_parallelism",
        "Context parallelism splits one long prompt across devices, so that its prefill is shared.",
        ("context parallelism", "context parallel prefill"),
    ),
    Fact(
        "moe",
        "A mixture-of-experts model has many feed-forward experts and sends each token through only a few of them.",
        ("a mixture of experts", "a mixture-of-experts model", "MoE"),
    ),
    Fact(
        "gqa",
        "Grouped-query attention lets several query heads share one key-value head, which shrinks the KV cache.",
        ("grouped-query attention", "GQA"),
    ),
    Fact(
        "mla",
        "Multi-head latent attention stores one compressed vector per token in place of full keys and values.",
        ("MLA", "multi-head latent attention"),
    ),
    Fact(
        "rope",
        "RoPE rotates queries and keys by an angle that depends on position, so that attention sees relative distance.",
        ("RoPE", "rotary position embedding"),
    ),
    Fact(
        "attention",
        "Attention lets each token weigh the values of earlier tokens by how well their keys match its query.",
        ("attention", "self-attention"),
    ),
    Fact(
        "roofline",
        "The roofline model bounds speed by the lower of two limits: peak arithmetic and memory "
        "bandwidth times arithmetic intensity.",
        ("the roofline model", "a roofline"),
        why="It tells at once whether work is compute-bound or memory-bound, and so what is worth improving.",
    ),
    Fact(
        "arithmetic_intensity",
        "Arithmetic intensity is the number of operations done per byte moved from memory.",
        ("arithmetic intensity",),
    ),
    Fact(
        "memory_bound",
        "Work is memory-bound when it waits for data to arrive and not for arithmetic; decode with a "
        "small batch is the usual example.",
        ("memory-bound work", "a memory-bound workload"),
    ),
    Fact(
        "compute_bound",
        "Work is compute-bound when arithmetic is the limit; prefill of a long prompt is the usual example.",
        ("compute-bound work", "a compute-bound workload"),
    ),
    Fact(
        "batching_why",
        "Each decode pass streams all the weights, and a batch shares that stream among its requests.",
        (),
        (
            "Why does batching help?",
            "Why do we batch requests?",
            "Why is batching faster?",
            "What is the point of batching?",
            "How does batching raise throughput?",
        ),
    ),
    Fact(
        "disaggregation",
        "Disaggregation runs prefill and decode in separate pools and moves the KV cache between "
        "them, so that neither disturbs the other.",
        ("disaggregation", "prefill/decode disaggregation"),
    ),
    Fact(
        "temperature",
        "Temperature scales the logits before sampling: zero always takes the likeliest token, higher "
        "values give more variety.",
        ("temperature", "sampling temperature"),
    ),
    Fact(
        "top_p",
        "Top-p sampling keeps the smallest set of tokens whose probability adds up to p and samples among them.",
        ("top-p", "nucleus sampling", "top_p"),
    ),
    Fact("top_k", "Top-k sampling keeps the k likeliest tokens and samples among them.", ("top-k", "top_k")),
    Fact(
        "greedy",
        "Greedy decoding always takes the likeliest token, so the same prompt gives the same answer.",
        ("greedy decoding", "greedy sampling"),
    ),
    Fact(
        "logits",
        "Logits are the raw scores a model gives to every token of its vocabulary before they become probabilities.",
        ("logits",),
    ),
    Fact(
        "token",
        "A token is a piece of text, often a word or part of one, that the model reads or writes as one unit.",
        ("a token",),
    ),
    Fact("tokenizer", "A tokenizer turns text into token ids and token ids back into text.", ("a tokenizer",)),
    Fact(
        "bpe",
        "Byte-pair encoding builds a vocabulary by merging the most frequent neighbouring pieces again and again.",
        ("BPE", "byte-pair encoding"),
    ),
    Fact(
        "chat_template",
        "A chat template renders a list of messages into the exact prompt text that a model was trained on.",
        ("a chat template", "the chat template"),
    ),
    Fact(
        "context_length",
        "The context length is the largest number of tokens, prompt and answer together, that a model can attend to.",
        ("the context length", "the context window"),
    ),
    Fact(
        "structured_output",
        "Structured output restricts generation with a grammar or schema, so that the answer is always valid.",
        ("structured output", "guided decoding"),
    ),
    Fact(
        "tool_calling",
        "In tool calling the model answers with the name and arguments of a function, and the result "
        "is given back to it in another turn.",
        ("tool calling", "function calling"),
    ),
    Fact(
        "sse",
        "Server-sent events are a simple way to stream text over one HTTP response, event by event.",
        ("SSE", "server-sent events"),
    ),
    Fact(
        "back_pressure",
        "Back-pressure slows a producer down when its consumer cannot keep up, in place of piling up data.",
        ("back-pressure",),
    ),
    Fact(
        "rag",
        "Retrieval-augmented generation finds relevant passages first and puts them into the prompt, so that "
        "the answer rests on them.",
        ("RAG", "retrieval-augmented generation"),
    ),
    Fact(
        "embedding",
        "An embedding is a vector that stands for a text, so that texts of like meaning lie close together.",
        ("an embedding", "an embedding vector"),
    ),
    Fact(
        "reranking",
        "Reranking scores the found passages again with a stronger model and keeps the best.",
        ("reranking", "a reranker"),
    ),
    Fact(
        "sft",
        "SFT is supervised fine-tuning: the model learns from examples of prompts and good answers.",
        ("SFT", "supervised fine-tuning"),
    ),
    Fact(
        "dpo",
        "DPO tunes a model directly on pairs of a better and a worse answer, without a reward model.",
        ("DPO", "direct preference optimisation"),
    ),
    Fact(
        "ppo",
        "PPO is a reinforcement learning method that improves a model against a reward while keeping each "
        "update small.",
        ("PPO",),
    ),
    Fact(
        "grpo", "GRPO samples a group of answers to each prompt and rewards each one relative to its group.", ("GRPO",)
    ),
    Fact(
        "slo",
        "An SLO is a service level objective: a target such as TTFT p95 below 500 ms.",
        ("an SLO", "a service level objective"),
    ),
    Fact("p95", "The p95 is the value that 95 percent of the requests stay below.", ("p95", "the 95th percentile")),
    Fact(
        "canary",
        "A canary rollout sends a small share of traffic to the new version and widens it only while "
        "quality and latency hold.",
        ("a canary rollout", "a canary"),
    ),
    Fact(
        "circuit_breaker",
        "A circuit breaker stops sending requests to something that keeps failing and tries it again after a pause.",
        ("a circuit breaker",),
    ),
    Fact(
        "rate_limit",
        "A rate limit bounds how many requests or tokens a caller may use in a minute.",
        ("a rate limit", "rate limiting"),
    ),
    Fact(
        "rpm_tpm",
        "RPM is requests per minute and TPM is tokens per minute; both are limits on a caller.",
        ("RPM and TPM",),
        ("What is RPM?", "What is TPM?", "What do RPM and TPM stand for?"),
    ),
    Fact(
        "flash_attention",
        "Flash attention computes attention tile by tile in fast memory and never writes the full score matrix.",
        ("flash attention",),
    ),
    Fact("nccl", "NCCL is the library that GPUs use to exchange tensors in collective operations.", ("NCCL",)),
    Fact(
        "all_reduce",
        "An all-reduce sums a tensor over all devices and gives each of them the result.",
        ("an all-reduce", "all-reduce"),
    ),
    Fact(
        "count_tokens",
        "Lengths vary a thousandfold between requests, so only tokens measure the real work.",
        (),
        (
            "Why count tokens and not requests?",
            "Why do limits count tokens?",
            "Why are tokens a better measure than requests?",
            "Why does billing count tokens?",
            "Why not count requests?",
        ),
    ),
)
