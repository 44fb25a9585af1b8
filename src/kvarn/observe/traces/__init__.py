"""Traces: a request's timeline as spans, and their export by OTLP."""
