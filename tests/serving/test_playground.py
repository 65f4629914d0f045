"""The page at `/`: what is served, under which headers, and when it is not."""

from __future__ import annotations

import argparse
import re
from urllib.parse import urljoin

import pytest

from spec_compile.commands import serve
from spec_compile.runtime.token_kinds import TOKEN_KINDS
from tests.serving.conftest import MODEL, Running, StartServer
from tests.serving.test_refusals import error_of

REFERENCE = re.compile(r"""(?:\b(?:href|src)="|\bfrom "|\burl\()([^")]+)""")


def reachable(running: Running) -> dict[str, str]:
    """The page and every file that it, or a file of it, names: path -> text."""
    found: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        answer = running.client.get(path)
        assert answer.status_code == 200, path
        found[path] = answer.text
        waiting += [urljoin(path, name) for name in REFERENCE.findall(answer.text)]
    return found


def test_everything_comes_from_the_server_itself(running: Running) -> None:
    found = reachable(running)
    assert {"/", "/playground/main.js", "/playground/kinds.css"} <= set(found)
    assert len(found) == 10
    for path, text in found.items():
        foreign = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not foreign, (path, foreign)


def test_the_policy_lets_nothing_else_in(running: Running) -> None:
    for path, text in reachable(running).items():
        headers = running.client.get(path).headers
        policy = dict(
            part.strip().partition(" ")[::2]
            for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        # What the policy would block must not be there to begin with.
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_no_script_makes_markup_of_text(running: Running) -> None:
    scripts = [text for path, text in reachable(running).items() if path.endswith(".js")]
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"
    )
    stores = r"localStorage|sessionStorage|document\.cookie|indexedDB"
    assert len(scripts) == 5
    assert not [found for text in scripts for found in re.findall(f"{sinks}|{stores}", text)]


def test_kinds_are_those_of_the_runtime(running: Running) -> None:
    page, css = running.client.get("/").text, running.client.get("/playground/kinds.css").text
    for kind in TOKEN_KINDS:
        assert f'class="token {kind.name}">{kind.label}<' in page
        assert f"--{kind.name}: light-dark({kind.light}, {kind.dark})" in css
        (rule,) = re.findall(rf"\.token\.{kind.name} {{(.*?)}}", css)
        assert f"var(--{kind.name})" in rule and kind.underline in rule


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_tokens_can_be_read(running: Running, theme: int) -> None:
    css = running.client.get("/playground/base.css").text
    colours = re.findall(r"--panel: light-dark\((#\w{6}), (#\w{6})\)", css)
    ground = luminance(colours[0][theme])
    for kind in TOKEN_KINDS:
        text = luminance((kind.light, kind.dark)[theme])
        contrast = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert contrast >= 4.5, kind.name  # WCAG 2.2, level AA


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_needs_no_key_and_tells_nothing(start: StartServer) -> None:
    running = start(api_key="secret-key")
    assert "secret-key" not in "".join(reachable(running).values())
    assert MODEL not in running.client.get("/").text
    error_of(running.client.get("/v1/models"), 401)


def test_the_page_can_be_left_out(start: StartServer) -> None:
    running = start(playground=False)
    for path in ("/", "/playground/main.js"):
        error_of(running.client.get(path), 404)
    assert running.client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("given", [[], ["--no-playground"]], ids=["by default", "left out"])
def test_the_option_of_the_command(given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    assert serve.settings_of(parser.parse_args(["bundle", *given])).playground == (not given)


def test_the_model_says_what_a_page_needs_to_know(running: Running) -> None:
    (model,) = running.client.get("/v1/models").json()["data"]
    assert model["spec_compile"] == {
        "acceptance": "rejection",
        "num_speculative_tokens": 3,
        "num_drafts": 1,
        "has_chat_template": True,
        "max_tokens": 4096,
    }
