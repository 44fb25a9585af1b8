"""Long answers of a hundred tokens and more, so that streaming has something to show."""

from __future__ import annotations

import random
from collections.abc import Iterator

from recipes.demo.chat import Sample, assistant, user

ESSAYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "A request enters at the gateway. The gateway checks the API key, applies the rate limits, renders the chat "
        "template and turns the text into token ids. The router then picks a model version and the replica that has the "
        "longest cached prefix and the least load. In the replica the scheduler gives the request KV blocks and a share "
        "of each step. First the prompt is prefilled, in chunks when it is long; then every step yields one token. Each "
        "token travels back to the gateway, which turns it into text and streams it to the client. At the end the blocks "
        "are freed or kept as a cached prefix, the limits are settled and one usage event is written.",
        (
            "Explain how a request travels through Kvarn.",
            "How does a request travel through Kvarn?",
            "Describe the path of a request.",
            "What happens to a request from start to end?",
            "Walk me through the life of a request.",
            "Explain the way of a request in detail.",
        ),
    ),
    (
        "Serving a large language model has two halves. Prefill reads the whole prompt at once and keeps the arithmetic "
        "units busy. Decode then makes one token per pass and mostly waits for memory, because every pass streams all the "
        "weights. A server therefore batches many requests, so that they share that stream. What limits the batch is the "
        "KV cache, which grows with every token. So the cache is paged in blocks, shared by prefix, and taken back by "
        "preemption when it runs short. The aim is goodput: as many requests as possible that meet their latency "
        "targets.",
        (
            "Write a short introduction to LLM serving.",
            "Introduce me to LLM serving.",
            "How does LLM serving work?",
            "Explain LLM serving in detail.",
            "Give me an overview of LLM serving.",
            "Teach me about LLM serving.",
        ),
    ),
    (
        "Imagine a bus that never stops. In static batching the bus waits until it is full, drives to the end and only "
        "then lets everyone out. In continuous batching the doors are open at every step. A request that has produced its "
        "last token leaves at once, and a waiting request takes its place in the very next step. No place is padded and "
        "nobody waits for the longest answer. The scheduler only has to keep the sum of tokens in a step within the token "
        "budget and to find KV blocks for each of them. On mixed lengths this at least doubles the throughput.",
        (
            "Explain continuous batching in detail.",
            "Give me a long explanation of continuous batching.",
            "How does continuous batching work?",
            "Write about continuous batching.",
            "Teach me continuous batching with a picture.",
        ),
    ),
    (
        "Many prompts begin alike: the same system text, the same examples, the same conversation so far. Prefix caching "
        "keeps the KV blocks of such beginnings in a radix tree. When a new prompt arrives, the tree is walked from the "
        "root as far as the tokens agree. Those blocks are shared by raising their reference count, and only the rest of "
        "the prompt is prefilled. Blocks that nobody uses stay until room is needed; then the least recently used leaf is "
        "evicted first. A salt for each tenant keeps one customer from probing the prompts of another. The answers do not "
        "change at all, they only start sooner.",
        (
            "Explain prefix caching in detail.",
            "How does prefix caching work?",
            "Write about prefix caching.",
            "Give me a long explanation of prefix caching.",
            "How does the prefix cache work?",
        ),
    ),
    (
        "Decode is slow because each token needs a whole pass over the weights. Speculative decoding makes one pass yield "
        "several tokens. A cheap proposer, such as a small draft model or a search for repeated text, suggests the next "
        "few tokens. The large model reads all of them in one pass and compares each one with its own choice. The longest "
        "agreeing run is kept, and the first token that differs is replaced by the large model's own. So the output is "
        "exactly what the large model alone would have written. It pays when the acceptance rate is high and the batch is "
        "small, and it is switched off when arithmetic becomes the limit.",
        (
            "Explain speculative decoding in detail.",
            "How does speculative decoding work?",
            "Write about speculative decoding.",
            "Give me a long explanation of speculative decoding.",
            "Teach me how speculation works.",
        ),
    ),
    (
        "First look at the queue: when many requests wait, the replica is overloaded, so add replicas or shed batch work. "
        "Then look at the prefix hit rate: when it has dropped, prompts are prefilled again and again, so check the "
        "routing. Next look at the prompt lengths: very long prompts need chunked prefill with a smaller chunk. Then look "
        "at preemptions: when they are many, the KV cache is too small for the load. At last check whether an adapter or "
        "a replica was just started, because a cold start makes the first token late.",
        (
            "Why is my TTFT high?",
            "What should I check when TTFT is high?",
            "TTFT is too high, what can I do?",
            "How do I debug a slow first token?",
            "The first token is slow. Help me.",
        ),
    ),
    (
        "Step one: install it with pip install kvarn. Step two: run kvarn serve, which starts the gateway and one engine "
        "with the demo model. Step three: point an OpenAI client at the address that is printed, with your API key. Step "
        "four: send a chat completion and watch the tokens stream. Step five: open the console to see the batch, the KV "
        "blocks and the cost of your request. When you want your own model, name its folder in the configuration and "
        "start again.",
        (
            "How do I get started with Kvarn?",
            "Give me a step by step guide to Kvarn.",
            "Show me the first steps.",
            "How do I begin with Kvarn?",
            "Write a quick start for Kvarn.",
        ),
    ),
    (
        "Once there was a mill by a quiet river. Every morning farmers came with sacks of grain, some large and some "
        "small. The old miller served them one by one, and those with small sacks waited all day behind the large ones. "
        "Then his daughter had an idea. She opened many small boxes, filled each of them from whichever sack was next, "
        "and the stones never stood still. Those with small sacks went home before noon, and those with large sacks were "
        "no later than before. Soon people from the whole valley came, and they called the mill Kvarn.",
        (
            "Tell me a story.",
            "Tell me a story about a mill.",
            "Write a short story.",
            "Can you tell a story?",
            "Write a story about Kvarn.",
        ),
    ),
    (
        "Every new token needs room in the KV cache, and one day a step finds no free block. The scheduler first evicts "
        "cached prefixes that nobody uses. If that is not enough, it preempts the request with the lowest priority. Its "
        "blocks are either swapped to host memory or dropped for later recompute, whichever is cheaper. The request goes "
        "back to the queue with all its tokens. When blocks become free it is resumed and goes on exactly where it "
        "stopped, so the client sees a pause and nothing else.",
        (
            "Explain preemption in detail.",
            "Explain what happens when KV memory runs out.",
            "How does preemption work?",
            "Write about preemption.",
            "Describe step by step how Kvarn preempts a request.",
        ),
    ),
    (
        "An organisation pays for tokens, so tokens are what Kvarn counts. When a request arrives, the gateway reserves "
        "its prompt and its longest possible answer against the limits of the key, the project and the tenant. When the "
        "answer is complete, the reservation is settled to the true number. One usage event is written in the same "
        "transaction as the ledger, and an outbox carries it to Kafka. So a crash can neither lose an event nor count it "
        "twice, and the invoice always agrees with the ledger.",
        (
            "Explain billing in detail.",
            "How does Kvarn bill tokens?",
            "How does billing work?",
            "Write about metering.",
            "How does Kvarn count what a request cost?",
        ),
    ),
)


def sample(rng: random.Random) -> Sample:
    """A request for a long answer."""
    answer, questions = rng.choice(ESSAYS)
    return Sample("long_answers", (user(rng.choice(questions)), assistant(answer)))


def golden(rng: random.Random) -> Iterator[Sample]:
    """One question for each long answer."""
    for answer, questions in ESSAYS:
        yield Sample("long_answers", (user(rng.choice(questions)), assistant(answer)))
