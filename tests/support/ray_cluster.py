"""A Ray cluster of several nodes on this machine, in a process of its own: importing Ray changes this one's logging."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class RayCluster:
    """Its head has room for `head_cpus` engines of one core, and listens on `port` (0: any). Skips the test where Ray
    is not installed."""

    def __init__(self, head_cpus: int = 0, port: int = 0, **environment: str) -> None:
        if importlib.util.find_spec("ray") is None:
            pytest.skip("the Ray launcher needs the extra `ray`: pip install 'kvarn[ray]'")
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(head_cpus), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.address: str = self._answer()

    def add_node(self, cpus: int) -> str:
        """Id of a new node."""
        return self._ask("add", cpus)

    def kill_node(self, node: str) -> None:
        """End a node without grace."""
        self._ask("kill", node)

    def drain_node(self, node: str, within_s: int) -> None:
        """Announce that a node ends, as Ray's autoscaler does for one that the cloud takes away."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        where = ["--address", self.address, "--node-id", node]
        command = [str(Path(sys.executable).with_name("ray")), "drain-node", *where, *reason]
        subprocess.run([*command, "--deadline-remaining-seconds", str(within_s)], check=True, capture_output=True)

    def kill_head(self) -> None:
        """End what knows the cluster, without grace. Its nodes end by themselves after a minute."""
        self._ask("kill head", None)

    def stop(self) -> None:
        """End all."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, what: str, argument: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, argument]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        for line in self._process.stdout or ():
            if line.startswith("answer: "):
                return json.loads(line.removeprefix("answer: "))
        raise AssertionError(f"the cluster's process ended with {self._process.wait()}")


def main() -> None:
    """The process."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": int(sys.argv[1]), "include_dashboard": False}
    if port := int(sys.argv[2]):
        head["gcs_server_port"] = port
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    print("answer: " + json.dumps(cluster.address), flush=True)  # noqa: T201
    for line in sys.stdin:
        match json.loads(line):
            case ["add", cpus]:
                node = cluster.add_node(num_cpus=cpus)
                nodes[node.node_id] = node
                print("answer: " + json.dumps(node.node_id), flush=True)  # noqa: T201
            case ["kill head", None]:
                cluster.head_node.kill_gcs_server(check_alive=False)
                print("answer: null", flush=True)  # noqa: T201
            case ["kill", node_id]:
                cluster.remove_node(nodes.pop(node_id), allow_graceful=False)
                print("answer: null", flush=True)  # noqa: T201
    cluster.shutdown()


if __name__ == "__main__":
    main()
