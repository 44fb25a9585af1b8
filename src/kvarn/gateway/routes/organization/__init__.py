"""`/v1/organization`: what administrators do, in OpenAI's shapes."""
