"""The Model Context Protocol: servers whose tools models use here, and Kvarn as a server of others' models."""
