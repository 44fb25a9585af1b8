"""Families of decoders as data; from config.json to a `DecoderSpec`."""
