"""`kvarn deploy --canary`: a version of a deployment takes over step by step, in real engines under load, or goes."""

from __future__ import annotations

import httpx
import pytest

from deployed_server import SMALL, WAIT, Load, done, status, wait_for

FAST = ("step_requests=8", "shadow_requests=4", "step_min_s=0", "check_interval_s=0.2", "golden_prompts=24")
# What else runs on this machine may slow down either version.
ROLLOUT = tuple(part for each in (*FAST, "tolerated_slowdown=10") for part in ("--rollout", each))
TEMPLATE = 'chat_template="{% for message in messages %}{{ message.content }}\\n{% endfor %}"'


@pytest.fixture(scope="module")
def served(serve_long, tmp_path_factory):
    return serve_long("kvarn-demo", *SMALL, KVARN_DATA_DIR=str(tmp_path_factory.mktemp("canary")))


def arms(served, count: int) -> set[str]:
    """The versions that answer so many requests."""
    body = {"model": "kvarn-demo", "prompt": "a", "max_tokens": 1}
    answers = [httpx.post(f"{served.url}/v1/completions", json=body, timeout=60) for _ in range(count)]
    assert {each.status_code for each in answers} == {200}
    return {each.headers.get("x-kvarn-arm", "") for each in answers}


def share(kvarn, served) -> float:
    """Of the requests that the version answers that is rolled out; a gateway process may not have heard of it yet."""
    rollout = status(kvarn, served, "kvarn-demo")["rollout"]
    return 0.0 if rollout is None else rollout["share"]


def test_a_version_as_good_is_promoted_and_one_with_a_wrong_template_is_rolled_back(kvarn, served):
    url = ("--url", served.url)
    with Load(served.url, "kvarn-demo") as load:
        better = kvarn(
            "deploy",
            "kvarn-demo",
            "--set",
            "engine.max_num_seqs=8",
            "--canary",
            "30,60",
            "--shadow",
            *ROLLOUT,
            *WAIT,
            *url,
        )
        assert done(better) == "kvarn-demo: version 1 is rolled out beside version 0\n"
        promoted = status(kvarn, served, "kvarn-demo")
        assert (promoted["version"], promoted["previous_version"]) == (1, 0)
        assert (promoted["rollout"]["phase"], promoted["rollout"]["share"]) == ("promoted", 1.0)
        assert [each["version"] for each in promoted["observed"]] == [1]
        log = httpx.get(f"{served.url}/v1/rollouts/kvarn-demo").json()["log"]
        assert [(entry["action"], entry["share"]) for entry in log] == [
            ("start", 0.0), ("step", 0.3), ("step", 0.6), ("step", 1.0), ("promote", 1.0),
        ]  # fmt: skip

        worse = kvarn("deploy", "kvarn-demo", "--set", TEMPLATE, "--canary", "30,60", *ROLLOUT, *WAIT, *url)
        assert worse.returncode == 1
        assert "version 2 of kvarn-demo was rolled back: golden:" in worse.stderr, worse.stderr
        back = status(kvarn, served, "kvarn-demo")
        assert (back["version"], [each["version"] for each in back["observed"]]) == (1, [1])
    assert load.failures == []
    assert len(load.answers) > 20 and len(set(load.answers)) == 1


@pytest.mark.thorough
def test_a_rollback_by_hand_holds_at_once_and_other_changes_wait_for_the_rollout(kvarn, served):
    url, before = ("--url", served.url), status(kvarn, served, "kvarn-demo")["version"]
    slow = ("--rollout", "golden_prompts=0", "--rollout", "step_requests=1000")
    done(kvarn("deploy", "kvarn-demo", "--set", "engine.max_num_seqs=4", "--canary", "50", *ROLLOUT, *slow, *url))
    wait_for(lambda: share(kvarn, served) == 0.5)
    candidate = status(kvarn, served, "kvarn-demo")["rollout"]["version"]
    assert arms(served, 30) == {f"kvarn-demo@{before}", f"kvarn-demo@{candidate}"}
    assert "kvarn-demo" in done(kvarn("models", *url))

    assert "(pause)" in done(kvarn("rollout", "pause", "kvarn-demo", *url))
    assert "requests failed" in done(kvarn("rollout", "status", "kvarn-demo", *url))
    assert "use `kvarn deploy" in kvarn("rollout", "start", "kvarn-demo", "other", "--identical").stderr
    refused = kvarn("deploy", "kvarn-demo", "--set", "engine.max_num_seqs=2", *url)
    assert refused.returncode == 1 and "is under way" in refused.stderr
    assert f"version {before} serves again" in done(kvarn("rollback", "kvarn-demo", *url))
    assert arms(served, 20) == {""}
    late = kvarn("rollout", "promote", "kvarn-demo", *url)
    assert late.returncode == 1 and "has ended" in late.stderr
    with Load(served.url, "kvarn-demo") as load:
        wait_for(lambda: [each["version"] for each in status(kvarn, served, "kvarn-demo")["observed"]] == [before])
    assert load.failures == [] and load.answers
    named = {"model": f"kvarn-demo@{before}", "prompt": "a", "max_tokens": 1}
    assert httpx.post(f"{served.url}/v1/completions", json=named, timeout=60).json()["model"] == "kvarn-demo"
    gone = {"model": f"kvarn-demo@{candidate}", "prompt": "a", "max_tokens": 1}
    assert httpx.post(f"{served.url}/v1/completions", json=gone, timeout=60).status_code == 404


@pytest.mark.thorough
def test_a_rollout_goes_on_after_a_restart_of_several_gateway_processes_that_all_compare(kvarn, serve, tmp_path):
    settings = ("--set", "engine.max_num_seqs=8", "--rollout", "golden_prompts=0")
    several = ("--api-server-count", "2")
    first = serve("kvarn-demo", *SMALL, *several, KVARN_DATA_DIR=str(tmp_path))
    held = ("--rollout", "step_requests=40")
    done(kvarn("deploy", "kvarn-demo", *settings, "--canary", "50", *ROLLOUT, *held, "--url", first.url))
    wait_for(lambda: share(kvarn, first) == 0.5)
    wait_for(lambda: len(arms(first, 30)) == 2)
    first.process.terminate()
    first.process.wait()

    second = serve("kvarn-demo", *SMALL, *several, KVARN_DATA_DIR=str(tmp_path))
    wait_for(lambda: share(kvarn, second) == 0.5)
    with Load(second.url, "kvarn-demo") as load:
        wait_for(lambda: status(kvarn, second, "kvarn-demo")["version"] == 1)
        wait_for(lambda: [each["version"] for each in status(kvarn, second, "kvarn-demo")["observed"]] == [1])
    assert load.failures == [] and len(set(load.answers)) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--canary", "five"), "write percentages"),
        (("--canary", "50,20"), "write percentages"),
        (("--canary", "0,200"), "write percentages"),
        (("--canary", "50"), "has the same settings"),
        (("--canary", "50", "--set", "hardware.memory_gib=100000"), "this machine has room for 0 of them"),
        (("--canary", "50", "--set", "path=/nowhere"), "no directory '/nowhere'"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(kvarn, served, arguments, says):
    refused = kvarn("deploy", "kvarn-demo", *arguments, "--url", served.url)
    assert refused.returncode != 0 and says in refused.stderr
