"""Facts about Kvarn itself, and about the demo model."""

from __future__ import annotations

from recipes.demo.facts import Fact

KVARN_FACTS: tuple[Fact, ...] = (
    Fact(
        "kvarn",
        "Kvarn is a platform for serving large language models that an organisation hosts itself: engine, "
        "gateway, router and everything around them.",
        ("Kvarn",),
        ("What is this platform?", "What is Kvarn for?", "What does Kvarn do?"),
    ),
    Fact(
        "kvarn_name",
        "Kvarn is Swedish for mill.",
        (),
        (
            "What does the name Kvarn mean?",
            "Where does the name Kvarn come from?",
            "Why is it called Kvarn?",
            "What does Kvarn mean in Swedish?",
            "Which language is the word Kvarn from?",
        ),
    ),
    Fact(
        "kvarn_users",
        "Kvarn is used by platform engineers, application developers, researchers and the operators "
        "who are paged when it is slow.",
        (),
        (
            "Who uses Kvarn?",
            "Who is Kvarn for?",
            "For whom is Kvarn made?",
            "What kind of people use Kvarn?",
            "Name the users of Kvarn.",
        ),
    ),
    Fact(
        "kvarn_why",
        "Engines know nothing of tenants and money, and gateways know nothing of KV caches; Kvarn joins "
        "them so that decisions which need both are made once.",
        (),
        (
            "Why was Kvarn built?",
            "Which problem does Kvarn solve?",
            "Why does Kvarn exist?",
            "What gap does Kvarn fill?",
            "Why should I use Kvarn?",
        ),
    ),
    Fact(
        "install",
        "Install it with pip install kvarn; nothing else has to be running.",
        ("the installation",),
        (
            "How do I install Kvarn?",
            "How can I install it?",
            "What is the command to install Kvarn?",
            "How is Kvarn installed?",
            "Can I install Kvarn with pip?",
        ),
    ),
    Fact(
        "serve",
        "Run kvarn serve: it starts a gateway and one engine process for each replica on this machine.",
        (),
        (
            "How do I start Kvarn?",
            "How do I start the server?",
            "What does kvarn serve do?",
            "Which command starts Kvarn?",
            "How do I run Kvarn on my laptop?",
        ),
    ),
    Fact(
        "openai",
        "Yes: the gateway speaks the OpenAI wire format, so the official clients in Python and Node work unchanged.",
        (),
        (
            "Is Kvarn compatible with OpenAI?",
            "Can I use the OpenAI client with Kvarn?",
            "Does Kvarn work with the OpenAI SDK?",
            "Do OpenAI clients work with Kvarn?",
            "Is the API of Kvarn OpenAI-compatible?",
        ),
    ),
    Fact(
        "endpoints",
        "The gateway offers chat completions, completions, responses, embeddings, models, files, "
        "batches, moderations, fine-tuning jobs and vector stores.",
        (),
        (
            "Which endpoints does Kvarn offer?",
            "What APIs does the gateway have?",
            "List the endpoints of the gateway.",
            "Which OpenAI resources does Kvarn support?",
            "What can I call on the gateway?",
        ),
    ),
    Fact(
        "gateway",
        "The gateway is the HTTP front of Kvarn: it authenticates, limits, validates, renders the prompt, "
        "streams the answer and settles the bill.",
        ("the gateway", "the Kvarn gateway"),
    ),
    Fact(
        "engine",
        "The engine is the brain of one replica: it schedules requests, keeps the KV blocks and plans each step.",
        ("the engine", "the Kvarn engine"),
    ),
    Fact(
        "router",
        "The router chooses the model version and the replica for each request, by cached prefix, load, "
        "session and loaded adapters.",
        ("the router", "the Kvarn router"),
    ),
    Fact(
        "control_plane",
        "The control plane keeps the desired state: it launches replicas, watches their health, "
        "scales them and rolls out new versions.",
        ("the control plane",),
    ),
    Fact(
        "scheduler",
        "The scheduler decides at every step which requests run and how many tokens each of them may "
        "compute within the token budget.",
        ("the scheduler",),
    ),
    Fact(
        "worker",
        "The worker is the muscle of a replica: it turns a step plan into tensors, runs the model and samples tokens.",
        ("the worker", "a worker"),
    ),
    Fact(
        "executor",
        "An executor turns a step plan into a step result; it may be a CPU, eight GPUs or a simulator.",
        ("an executor", "the executor"),
    ),
    Fact("replica", "A replica is one running copy of a model, perhaps spread over many devices.", ("a replica",)),
    Fact("deployment", "A deployment is the set of replicas that serve one version of a model.", ("a deployment",)),
    Fact("tenant", "A tenant is a customer or team with its own projects, keys, limits and data.", ("a tenant",)),
    Fact("project", "A project belongs to a tenant and groups API keys, limits and usage.", ("a project",)),
    Fact(
        "api_key",
        "An API key identifies a caller; Kvarn stores it only as a hash, and it has a scope and an expiry.",
        ("an API key",),
        ("How are API keys stored?",),
    ),
    Fact(
        "step_plan",
        "A step plan is plain data that says what to run in one step: request slots, token counts, new "
        "blocks, copies, swaps and proposals.",
        ("a step plan", "StepPlan"),
    ),
    Fact(
        "step_result",
        "A step result is plain data that comes back from a step: token ids, log-probabilities and accepted counts.",
        ("a step result", "StepResult"),
    ),
    Fact(
        "num_computed_tokens",
        "It is the number of a request's tokens whose keys and values are already in the cache.",
        ("num_computed_tokens",),
    ),
    Fact(
        "no_phases",
        "No: each step simply gives a request some of the gap between its known and its computed tokens.",
        (),
        (
            "Does the scheduler have a prefill phase?",
            "Is there a prefill phase in the scheduler?",
            "Does Kvarn schedule prefill and decode separately?",
            "Does the scheduler know phases?",
            "Are prefill and decode separate in the scheduler?",
        ),
    ),
    Fact(
        "engine_text",
        "No: text exists only in the gateway, and the engine sees nothing but token ids.",
        (),
        (
            "Does the engine see text?",
            "Does the engine know the text of a prompt?",
            "Does the engine tokenize text?",
            "Where does text live in Kvarn?",
            "Can the engine read my prompt text?",
        ),
    ),
    Fact(
        "determinism",
        "Determinism means that the same request gives the same tokens whatever else is in the "
        "batch, after preemption and after failover.",
        ("determinism", "batch invariance"),
    ),
    Fact(
        "prefix_salt",
        "The prefix cache is salted per tenant, so that no tenant can probe the prompts of another.",
        ("the cache salt", "the tenant salt"),
        ("Why is the prefix cache salted?", "Can another tenant probe my cached prompts?"),
    ),
    Fact(
        "block_identity",
        "A block is named by a chained hash of the tenant salt, the adapter and the tokens.",
        (),
        (
            "How is a block identified?",
            "What is the identity of a block?",
            "How are blocks named?",
            "What is the name of a block?",
            "How does Kvarn name a block across processes?",
        ),
    ),
    Fact(
        "failover",
        "When a replica dies, its requests continue on another one from the tokens already sent; the "
        "client only sees a pause.",
        ("failover", "mid-stream failover"),
        ("What happens when a replica dies?", "What happens if a decode replica crashes?"),
    ),
    Fact(
        "prefill_dies",
        "Another replica prefills the prompt again, and one request is late.",
        (),
        (
            "What happens when a prefill replica dies?",
            "What if a prefill replica crashes?",
            "What does Kvarn do when a prefill replica is lost?",
            "A prefill replica died, what now?",
            "How does Kvarn recover from a dead prefill replica?",
        ),
    ),
    Fact(
        "kv_full",
        "The lowest priority is preempted, swapped or recomputed, and queued again; the client sees a pause.",
        (),
        (
            "What happens when KV memory runs out?",
            "What if the KV cache is full?",
            "What does Kvarn do when it runs out of KV blocks?",
            "What happens when there are no free blocks?",
            "How does Kvarn handle KV memory pressure?",
        ),
    ),
    Fact(
        "kv_transfer_fails",
        "The decode replica prefills the prompt again.",
        (),
        (
            "What happens when a KV transfer fails?",
            "What if moving the KV cache fails?",
            "A KV transfer timed out, what happens?",
            "What does Kvarn do if a KV transfer fails?",
            "How does Kvarn survive a failed KV transfer?",
        ),
    ),
    Fact(
        "corrupt_block",
        "Every block carries a checksum; a block that does not match is dropped and recomputed.",
        (),
        (
            "What happens when a cached block is corrupt?",
            "How does Kvarn detect a corrupt block?",
            "What if a block fails its checksum?",
            "What are block checksums for?",
            "How are damaged KV blocks handled?",
        ),
    ),
    Fact(
        "client_gone",
        "The request is aborted and its KV blocks are freed at once.",
        (),
        (
            "What happens when a client disconnects?",
            "What if the client goes away?",
            "What happens if the client closes the connection?",
            "What does Kvarn do when a client leaves?",
            "Are blocks freed when a client disconnects?",
        ),
    ),
    Fact(
        "limit_reached",
        "The gateway answers 429 with a Retry-After header.",
        (),
        (
            "What happens when a rate limit is reached?",
            "What do I get when I exceed my limit?",
            "Which status code means too many requests?",
            "What does Kvarn answer when the limit is reached?",
            "What happens above the TPM limit?",
        ),
    ),
    Fact(
        "overload",
        "Kvarn sheds batch work first, then queues, then uses a smaller model, and only then answers 503.",
        (),
        (
            "What happens under overload?",
            "How does Kvarn handle overload?",
            "What does Kvarn do when there is too much traffic?",
            "In which order does Kvarn shed load?",
            "What if more requests come than Kvarn can serve?",
        ),
    ),
    Fact(
        "cp_away",
        "Serving goes on; only scaling and writes wait, and usage is kept on disk.",
        (),
        (
            "What happens when the control plane is down?",
            "Does serving stop when the database is away?",
            "What if the database is down?",
            "Can Kvarn serve without its control plane?",
            "What happens if the control plane dies?",
        ),
    ),
    Fact(
        "silent_wrong",
        "Golden prompts are replayed against every replica; a replica that drifts is drained and rolled back.",
        (),
        (
            "How does Kvarn detect silent wrong answers?",
            "What if a replica gives wrong answers?",
            "How is silent degradation found?",
            "What does Kvarn do about a replica with a wrong kernel?",
            "How does Kvarn notice that quality drifts?",
        ),
    ),
    Fact(
        "golden_set",
        "The golden set is a list of prompts with known answers, replayed to find drift before users do.",
        ("the golden set", "a golden set"),
    ),
    Fact(
        "unsafe_output",
        "A classifier notices it; the answer is truncated and the client is told so.",
        (),
        (
            "What happens with unsafe output?",
            "How does Kvarn treat unsafe answers?",
            "What if the model says something unsafe?",
            "What does Kvarn do with unsafe text?",
            "How is unsafe output handled?",
        ),
    ),
    Fact(
        "heartbeat",
        "Replicas send heartbeats, and one that stays silent for 5 seconds is taken for dead.",
        ("the heartbeat", "a heartbeat"),
        ("How long until a silent replica is taken for dead?", "How does Kvarn notice a dead replica?"),
    ),
    Fact(
        "admission",
        "Admission control predicts the TTFT and TPOT of a request and sheds, queues or degrades what "
        "would miss its target.",
        ("admission control", "SLO-aware admission"),
    ),
    Fact(
        "priority",
        "There are two priority tiers: interactive requests go before batch requests.",
        ("the priority tiers",),
        ("Which priorities does Kvarn have?", "How are requests prioritised?"),
    ),
    Fact(
        "vtc",
        "The virtual token counter adds up the tokens served to each tenant, and the tenant with the lowest "
        "count goes next.",
        ("the virtual token counter",),
        ("How does Kvarn stay fair between tenants?", "How is fairness across tenants kept?"),
    ),
    Fact(
        "ageing",
        "Ageing raises the priority of a request the longer it waits, so that none starves.",
        ("ageing",),
        ("How does Kvarn prevent starvation?",),
    ),
    Fact(
        "kv_tiers",
        "KV tiers keep cold blocks on the device, then in host memory, then on NVMe, so that they come "
        "back in place of being recomputed.",
        ("KV tiers", "the KV tiers"),
    ),
    Fact("nixl", "NIXL is the library Kvarn uses to move KV blocks between replicas.", ("NIXL",)),
    Fact(
        "ray",
        "Ray places replicas on many machines and restarts them; it is never on the token path.",
        (),
        (
            "What does Kvarn use Ray for?",
            "What is Ray for in Kvarn?",
            "Is Ray on the token path?",
            "How does Kvarn place replicas on many machines?",
            "Why does Kvarn use Ray?",
        ),
    ),
    Fact(
        "kafka",
        "Usage events travel through a transactional outbox to Kafka, so that nothing is lost or doubled.",
        (),
        (
            "What does Kvarn use Kafka for?",
            "Why does Kvarn use Kafka?",
            "What is Kafka for in Kvarn?",
            "Where do usage events go?",
            "How do usage events reach Kafka?",
        ),
    ),
    Fact(
        "redis",
        "Redis holds the rate limits when there are several gateways.",
        (),
        (
            "What does Kvarn use Redis for?",
            "Why does Kvarn need Redis?",
            "What is Redis for in Kvarn?",
            "When do I need Redis?",
            "Is Redis required?",
        ),
    ),
    Fact(
        "database",
        "SQLite by default, and PostgreSQL when there are many machines.",
        (),
        (
            "Which database does Kvarn use?",
            "Where does Kvarn store its data?",
            "Does Kvarn need PostgreSQL?",
            "What is the default database?",
            "Which databases are supported?",
        ),
    ),
    Fact(
        "zmq",
        "They exchange small typed messages of token ids over ZMQ.",
        (),
        (
            "How do the gateway and the engine talk?",
            "How does the gateway talk to a replica?",
            "Which protocol links the gateway and the engine?",
            "What travels between the gateway and the engine?",
            "What is ZMQ for in Kvarn?",
        ),
    ),
    Fact(
        "outbox",
        "A transactional outbox writes an event in the same transaction as the data and sends it later, "
        "so that none is lost.",
        ("the outbox", "a transactional outbox"),
    ),
    Fact(
        "metering",
        "Metering records one usage event for each request, exactly once, and turns tokens into cost and budgets.",
        ("metering", "usage metering"),
    ),
    Fact("budget", "A budget caps the tokens or the money that a tenant may spend.", ("a budget", "a tenant budget")),
    Fact(
        "reserve_settle",
        "Tokens are reserved before a request runs and settled to the true number afterwards.",
        (),
        (
            "How are token limits counted?",
            "How does Kvarn count tokens against a limit?",
            "What does reserve and settle mean?",
            "When are tokens reserved?",
            "How does a TPM limit know the length of an answer?",
        ),
    ),
    Fact(
        "autoscaling",
        "Autoscaling adds or removes replicas by queue depth and TTFT, never by CPU load.",
        ("autoscaling",),
        ("How does Kvarn scale?", "What triggers autoscaling?"),
    ),
    Fact(
        "scale_to_zero",
        "Scale to zero stops all replicas of an idle model and starts one again when a request comes.",
        ("scale to zero",),
    ),
    Fact(
        "rollout",
        "A rollout replaces weights, adapters, prompts or configuration without downtime, with gates on "
        "quality and automatic rollback.",
        ("a rollout", "a zero-downtime rollout"),
    ),
    Fact("rollback", "A rollback returns traffic at once to the version that worked before.", ("a rollback",)),
    Fact(
        "shadow",
        "Shadow traffic is a copy of real requests sent to a new version whose answers nobody sees.",
        ("shadow traffic",),
    ),
    Fact(
        "registry",
        "The registry versions the base model, adapter, prompt template, retrieval settings and "
        "evaluation set together.",
        ("the registry", "the model registry"),
    ),
    Fact(
        "planner",
        "The planner computes memory, replicas, parallelism and cost per million tokens from the model, "
        "the hardware, the traffic and the targets.",
        ("the planner", "the capacity planner"),
    ),
    Fact(
        "simulator",
        "The simulator runs the real scheduler and router on a virtual clock with modelled devices.",
        ("the simulator",),
    ),
    Fact(
        "console",
        "The console is the web page of Kvarn: a playground and a live view of batches, queues, usage, "
        "cost and rollouts.",
        ("the console", "the web console"),
    ),
    Fact(
        "cli",
        "The command line has serve, chat, bench, plan, simulate, keys, models, rollout, tune and eval.",
        (),
        (
            "Which commands does the CLI have?",
            "What commands are there?",
            "List the kvarn commands.",
            "What can the command line do?",
            "Which subcommands does kvarn have?",
        ),
    ),
    Fact(
        "slo_targets",
        "TTFT p95 below 500 ms, TPOT p95 below 50 ms, goodput above 90 percent and availability of 99.9 percent.",
        (),
        (
            "What are the service levels of Kvarn?",
            "Which latency targets does Kvarn have?",
            "What are Kvarn's SLO targets?",
            "Name the service levels.",
            "Which service levels does Kvarn promise?",
        ),
    ),
    Fact(
        "ttft_target",
        "TTFT p95 should stay below 500 ms.",
        (),
        (
            "What is the TTFT target?",
            "How low should TTFT be?",
            "What TTFT does Kvarn aim for?",
            "What is a good TTFT?",
            "Which TTFT is the target?",
        ),
    ),
    Fact(
        "tpot_target",
        "TPOT p95 should stay below 50 ms.",
        (),
        (
            "What is the TPOT target?",
            "How low should TPOT be?",
            "What TPOT does Kvarn aim for?",
            "What is a good TPOT?",
            "Which TPOT is the target?",
        ),
    ),
    Fact(
        "alerts",
        "A P1 alert fires when goodput falls below 85 percent, TTFT p95 exceeds 1 second or KV use passes 95 percent.",
        (),
        (
            "When does Kvarn page an operator?",
            "Which alerts are P1?",
            "What are the P1 alerts?",
            "When does a P1 alert fire?",
            "What wakes the operator?",
        ),
    ),
    Fact(
        "families",
        "Llama, Mistral, Qwen, Phi, Gemma, OLMo, Mixtral and DeepSeek, and encoders for embedding and reranking.",
        (),
        (
            "Which models does Kvarn support?",
            "Which model families can Kvarn run?",
            "What models can I serve?",
            "List the supported model families.",
            "Does Kvarn support Llama?",
        ),
    ),
    Fact(
        "external",
        "Kvarn can use vLLM, SGLang, llama.cpp or any OpenAI-compatible server as a replica, with the "
        "same limits and metering.",
        ("an external replica",),
        (
            "Can Kvarn use vLLM as a replica?",
            "Does Kvarn work with other engines?",
            "Can I put llama.cpp behind Kvarn?",
        ),
    ),
    Fact(
        "waste",
        "Less than 4 percent of the allocated KV memory.",
        (),
        (
            "How much KV memory does Kvarn waste?",
            "How much of the KV cache is wasted?",
            "What share of KV memory may be wasted?",
            "What is the KV waste in Kvarn?",
            "How small is the KV waste?",
        ),
    ),
    Fact(
        "frameworks",
        "Kvarn is written in Python, with torch for tensors, C++ kernels for the CPU and Triton kernels for the GPU.",
        (),
        (
            "What is Kvarn written in?",
            "Which language is Kvarn written in?",
            "What is Kvarn built on?",
            "Which libraries does Kvarn build on?",
            "Is Kvarn written in Python?",
        ),
    ),
    Fact(
        "gpu",
        "No: it starts on a laptop CPU in seconds, and the same configuration grows to a cluster of GPUs.",
        (),
        (
            "Does Kvarn need a GPU?",
            "Do I need a GPU?",
            "Can Kvarn run without a GPU?",
            "Is a GPU required?",
            "What hardware do I need for Kvarn?",
        ),
    ),
    Fact(
        "spec_off",
        "It switches itself off when the batch is large enough to be compute-bound.",
        (),
        (
            "When is speculation switched off?",
            "When does speculative decoding not help?",
            "Is speculation always on?",
            "When does Kvarn disable speculation?",
            "Does speculation turn itself off?",
        ),
    ),
    Fact(
        "rejected",
        "They are rolled back by moving num_computed_tokens; nothing is copied.",
        (),
        (
            "What happens to rejected tokens?",
            "How are rejected proposals undone?",
            "How does Kvarn roll back rejected speculation?",
            "What happens when a proposal is rejected?",
            "Are rejected tokens copied away?",
        ),
    ),
    Fact(
        "sampling_seed",
        "Sampling draws from a counter-based generator keyed by seed and position, so a token "
        "depends on its request alone.",
        (),
        (
            "How does Kvarn make sampling reproducible?",
            "How does the sampler use the seed?",
            "Where do random numbers come from in Kvarn?",
            "Why is sampling reproducible?",
            "Which random generator does Kvarn use?",
        ),
    ),
    Fact("pii", "PII redaction removes personal data from logs before they are written.", ("PII redaction",)),
    Fact("mcp", "MCP is a protocol through which a model can use tools that another server offers.", ("MCP",)),
    Fact(
        "demo_model",
        "The demo model is a small Llama-style chat model that ships with Kvarn, so that it can answer "
        "with no download.",
        ("the demo model", "kvarn-demo"),
    ),
    Fact(
        "demo_training",
        "On text that a recipe in the Kvarn repository generates itself.",
        (),
        (
            "What was the demo model trained on?",
            "How were you trained?",
            "What were you trained on?",
            "Where does your training data come from?",
            "Which data trained the demo model?",
        ),
    ),
)
