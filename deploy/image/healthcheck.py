#!/opt/kvarn/bin/python
"""Healthcheck of the image: exit status 0 while the server answers `/health`, over HTTP or HTTPS."""

import http.client
import os
import ssl
import sys

PORT = int(os.environ.get("KVARN_GATEWAY__PORT", "8000"))
TIMEOUT_S = 2

# Not urllib: that would ask through the proxy that a container's environment may name. The certificate is made for the
# server's name, not for this address.
for connection in (
    http.client.HTTPConnection("127.0.0.1", PORT, timeout=TIMEOUT_S),
    http.client.HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=ssl._create_unverified_context()),
):
    try:
        connection.request("GET", "/health")
        sys.exit(0 if connection.getresponse().status == http.HTTPStatus.OK else 1)
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer at port {PORT}: {error}", file=sys.stderr)
sys.exit(1)
