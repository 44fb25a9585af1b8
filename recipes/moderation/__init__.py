"""The recipe of the built-in moderation classifier: text made from templates, training, measuring, export."""
