#!/opt/kvarn/bin/python
"""Healthcheck of the image: exit status 0 while the server answers `/health`."""

import os
import ssl
import urllib.request

PORT = os.environ.get("KVARN_GATEWAY__PORT", "8000")
SCHEME = "https" if os.environ.get("KVARN_GATEWAY__SSL_CERTFILE") else "http"

# The certificate is made for the server's name, not for this address.
urllib.request.urlopen(
    f"{SCHEME}://127.0.0.1:{PORT}/health",
    timeout=4,
    context=ssl._create_unverified_context() if SCHEME == "https" else None,
)
