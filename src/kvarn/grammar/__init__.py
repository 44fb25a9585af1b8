"""Answers that match a grammar: what clients ask for becomes one of llguidance's grammars, and that becomes masks.

`requests`, `json_schema` and `tool_calls` say in the gateway what an answer must match, and refuse what cannot be
enforced. `vocabulary` and `masks` are the engine process's part.
"""
