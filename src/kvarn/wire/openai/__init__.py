"""The objects of the OpenAI API: requests (pydantic, strict), answers (msgspec, cheap to encode), errors.

Import the modules by name: `errors` and the answers' structs cost nothing, the requests bring pydantic.
"""
