"""The objects of Anthropic's Messages API: requests (pydantic, strict), answers and events (msgspec), errors."""
