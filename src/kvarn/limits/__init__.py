"""Requests and tokens per minute, and how many run at once: one algorithm, in the process and in Redis.

| module | story |
|---|---|
| `orders` | the words: a bound, an order, what a count says of it |
| `rules` | from a principal's rules to the bounds of one request |
| `counts` | the algorithm, in plain Python |
| `counts.lua`, `script` | the same algorithm, as one script in Redis; what it is given and answers |
| `local`, `shared` | who keeps counts: this process, or Redis for several |
| `redis_scripts` | how scripts are run in Redis, and what is done while it is away |
| `limiter` | takes orders in, renews them while they run, settles them |
| `estimate` | how long an answer will be, where the client set no bound |
"""
