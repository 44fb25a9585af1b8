"""`kvarn deploy`, `scale`, `rollback` and `status` against a running server that answers all the while."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from deployed_server import SMALL, WAIT, Load, done, status, wait_for
from profiles import effort

SETTINGS = ("--set", "max_context_length=256", "--set", "kv_cache_gib=0.03", "--set", "threads=1")


@pytest.fixture(scope="module")
def served(serve_long, tmp_path_factory):
    return serve_long("kvarn-demo", *SMALL, KVARN_DATA_DIR=str(tmp_path_factory.mktemp("deployments")))


def test_a_model_that_the_configuration_does_not_name_is_deployed_and_answers(kvarn, served):
    says = done(kvarn("deploy", "second", "--path", "kvarn-demo", *SETTINGS, *WAIT, "--url", served.url))
    assert says == "second: version 1 with 1 replica\n"
    assert "second" in done(kvarn("models", "--url", served.url))
    assert "first token" in done(
        kvarn("chat", "What is TTFT?", "-m", "second", "--temperature", "0", "--url", served.url)
    )
    metrics = httpx.get(f"{served.url}/metrics").text
    assert 'kvarn_ttft_seconds_count{model="second"} 1.0' in metrics


def test_a_model_is_put_to_sleep_and_woken(served):
    def asleep() -> bool:
        return httpx.get(f"{served.url}/is_sleeping?model=second").json()["is_sleeping"]

    def answers() -> bool:
        asked = {"model": "second", "prompt": "What", "max_tokens": 1}
        return httpx.post(f"{served.url}/v1/completions", json=asked, timeout=60).status_code == 200

    assert not asleep() and httpx.post(f"{served.url}/sleep?model=second").status_code == 200
    wait_for(asleep)
    assert not answers() and httpx.post(f"{served.url}/wake_up?model=second").status_code == 200
    wait_for(answers)
    assert not asleep()


def test_replicas_and_versions_change_while_every_request_is_answered_alike(kvarn, served):
    with Load(served.url, "kvarn-demo") as load:
        done(kvarn("scale", "kvarn-demo", "2", *WAIT, "--url", served.url))
        assert {each["state"] for each in status(kvarn, served, "kvarn-demo")["observed"]} == {"ready"}
        done(kvarn("deploy", "kvarn-demo", "--set", "engine.max_num_seqs=8", *WAIT, "--url", served.url))
        after = status(kvarn, served, "kvarn-demo")
        assert (after["version"], after["previous_version"], after["replicas"]) == (1, 0, 2)
        assert [each["version"] for each in after["observed"]] == [1, 1]
        assert after["settings"]["engine"] == {"max_num_seqs": 8}
        for version in range(1, effort(1, 2)):
            setting = f"engine.max_num_seqs={8 + version * 8}"
            done(kvarn("deploy", "kvarn-demo", "--set", setting, *WAIT, "--url", served.url))
        done(kvarn("rollback", "kvarn-demo", *WAIT, "--url", served.url))
        back, wanted = status(kvarn, served, "kvarn-demo"), effort(0, 1)
        assert (back["version"], {each["version"] for each in back["observed"]}) == (wanted, {wanted})
        done(kvarn("scale", "kvarn-demo", "1", *WAIT, "--url", served.url))
    assert load.failures == []
    assert len(load.answers) > 2 and len(set(load.answers)) == 1


def test_a_version_that_cannot_start_changes_nothing_and_says_why(kvarn, served, tmp_path):
    before = status(kvarn, served, "kvarn-demo")["version"]
    url = ("--url", served.url)
    deployed = kvarn("deploy", "kvarn-demo", "--set", f"path={tmp_path}", "--wait", "3", *url)
    assert deployed.returncode == 1
    assert "config.json" in deployed.stderr and len(deployed.stderr.splitlines()) == 1
    assert "first token" in done(kvarn("chat", "What is TTFT?", "-m", "kvarn-demo", "--temperature", "0", *url))
    assert str(tmp_path) in status(kvarn, served, "kvarn-demo")["problem"]
    done(kvarn("rollback", "kvarn-demo", *WAIT, *url))
    assert status(kvarn, served, "kvarn-demo")["version"] == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("deploy", "third"), "path"),
        (("deploy", "kvarn-demo", "--set", "engine.max_num_seqs=none"), "settings.engine.max_num_seqs"),
        (("deploy", "kvarn-demo", "--set", "no_such=1"), "settings.no_such"),
        (
            ("deploy", "third", "--path", "kvarn-demo", "--set", "tokenizer=~nobody-of-that-name/x"),
            "settings.tokenizer",
        ),
        (("deploy", "third", "--path", "kvarn-demo", "--set", "aliases=[second]"), "'second' belongs to the model"),
        (("scale", "nothing", "2"), "no deployment of 'nothing'"),
        (("rollback", "second"), "one version only"),
        (("status", "nothing"), "no model 'nothing'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kvarn, served, arguments, says):
    done(kvarn("deploy", "second", "--path", "kvarn-demo", *SETTINGS, "--url", served.url))  # again: no new version
    refused = kvarn(*arguments, "--url", served.url)
    assert refused.returncode == 1 and says in refused.stderr and len(refused.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_several_gateway_processes_serve_what_is_deployed_and_a_server_that_starts_again_too(kvarn, serve, tmp_path):
    several = ("--api-server-count", "2")
    first = serve("kvarn-demo", *SMALL, *several, KVARN_DATA_DIR=str(tmp_path))
    url = ("--url", first.url)
    done(kvarn("deploy", "second", "--path", "kvarn-demo", *SETTINGS, "--replicas", "2", *WAIT, *url))
    body = {"model": "second", "messages": [{"role": "user", "content": "What is TTFT?"}], "max_tokens": 4}
    for _ in range(12):  # each connection goes to either process
        assert httpx.post(f"{first.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    first.process.terminate()
    first.process.wait()

    second = serve("kvarn-demo", *SMALL, KVARN_DATA_DIR=str(tmp_path))
    wanted = status(kvarn, second, "second")
    assert (wanted["version"], wanted["replicas"]) == (1, 2)
    assert httpx.post(f"{second.url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_model_without_replicas_holds_requests_until_the_first_is_there_and_says_why_it_came(kvarn, served):
    scaling = ("--set", "autoscale={min_replicas: 0, max_replicas: 2, max_held: 2, start_s: 5}")
    done(kvarn("deploy", "asleep", "--path", "kvarn-demo", *SETTINGS, *scaling, "--url", served.url))
    body = {"model": "asleep", "messages": [{"role": "user", "content": "What is TTFT?"}], "max_tokens": 4}
    wait_for(lambda: "asleep" in done(kvarn("models", "--url", served.url)))
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda _: httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120), range(8))
        )
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses[200] >= 2 and set(statuses) <= {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert answer.headers["retry-after"] == "5" and "wait already" in answer.text
    decisions = httpx.get(f"{served.url}/v1/organization/deployments/decisions").json()["data"]
    assert next(each["replicas"] for each in decisions if each["model"] == "asleep") >= 1
    assert "s wait" in next(each["reason"] for each in decisions if each["model"] == "asleep" and each["replicas"])
