"""Commands of the page on Kubernetes: Helm's library renders what `helm` would install, `kubectl` names its objects."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart import CHART, ROOT, Object, Rendered, merged, render

PAGE = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()
SWITCHES = ("--create-namespace", "--reset-then-reuse-values")
WITHOUT_VALUES = ("rollback", "uninstall")
SHORT = {"statefulset": "StatefulSet", "service": "Service", "deployment": "Deployment"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands(program: str) -> Iterator[list[str]]:
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("KEY=$(").removesuffix("&").removesuffix(")") if "KEY=$(" in line else line
            words = shlex.split(line.removesuffix("&"))
            if words[0] == program:
                yield words[1:]


def _values_of(options: list[str]) -> Object:
    """What `-f` and `--set` give; anything else must be an option that is known here."""
    values, words = [], iter(options)
    for word in words:
        if word == "-f":
            file = next(words)
            values.append(_own_values() if file == "values.yaml" else yaml.safe_load((ROOT / file).read_text()))
        elif word == "--set":
            path, _, value = next(words).partition("=")
            nested: Any = value
            for part in reversed(path.split(".")):
                nested = {part: nested}
            values.append(nested)
        elif word == "--namespace":
            assert next(words) == "llm"
        else:
            assert word in SWITCHES, word
    return merged(*values)


def _own_values() -> Object:
    (block,) = [each for each in blocks("yaml") if each.startswith("# values.yaml")]
    return dict(yaml.safe_load(block))


HELM = list(commands("helm"))


@pytest.mark.parametrize("words", HELM, ids=" ".join)
def test_what_helm_is_told_renders(words: list[str]) -> None:
    verb, release, *rest = words
    assert release == "kvarn"
    if verb in WITHOUT_VALUES:
        assert rest == ["--namespace", "llm"]
        return
    assert verb in ("install", "upgrade") and ROOT / rest[0] == CHART
    assert render(_values_of(rest[1:])).workloads()


@pytest.mark.parametrize("text", [each for each in blocks("yaml") if not each.startswith("# rules of")])
def test_values_that_are_shown_are_values(text: str) -> None:
    assert render(yaml.safe_load(text)).workloads()


def test_what_kubectl_is_told_is_about_what_is_there() -> None:
    first = render(_values_of(HELM[0][3:]))
    checked = 0
    for words in commands("kubectl"):
        assert words[:2] == ["--namespace", "llm"]
        verb, *rest = words[2:]
        for kind, name in re.findall(r"\b(statefulset|service|deployment)/([\w-]+)", " ".join(rest)):
            _find(first, SHORT[kind], name)
            checked += 1
        if verb == "apply":
            assert (ROOT / rest[1]).is_file()
        if verb == "port-forward":
            ports = [each["port"] for each in _find(first, "Service", "kvarn")["spec"]["ports"]]
            assert int(rest[1].partition(":")[2]) in ports
        if verb == "create":
            made = set(re.findall(r"--from-literal=([\w-]+)=", " ".join(rest)))
            for values in (yaml.safe_load(each) for each in blocks("yaml")):
                if values.get("secret", {}).get("existing") == rest[2]:
                    assert set(values["secret"]["settings"].values()) == made
                    checked += 1
        if verb == "delete":
            label, _, value = rest[rest.index("--selector") + 1].partition("=")
            pods = _find(first, "StatefulSet", "kvarn")["spec"]["template"]["metadata"]["labels"]
            assert pods[label] == value
    assert checked >= 4


def test_the_notes_name_what_is_there() -> None:
    for values in ((), ("available.yaml", "groups.yaml")):
        rendered = render(merged(*values))
        names = re.findall(r"\b(statefulset|service|deployment)/([\w-]+)", rendered.notes)
        assert len(names) == 3
        for kind, name in names:
            _find(rendered, SHORT[kind], name)


def _find(rendered: Rendered, kind: str, name: str) -> Object:
    (found,) = [each for each in rendered.of(kind) if each["metadata"]["name"] == name]
    return found
