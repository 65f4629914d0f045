"""The page in a real browser: what it shows is what the runtime did, and it can be used."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.tokenizer import BundleTokenizer
from tests.helpers.chromium import Page, open_chromium
from tests.helpers.toy_bundle import EOS, VOCAB
from tests.serving.conftest import MODEL, Running, StartServer

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

OpenPage = Callable[[Running], Page]
OPTIONS: dict[str, Any] = {"seed": 11, "temperature": 1.0}
HOSTILE = (
    "<img src=x onerror='window.owned = 1'>",
    "<script>window.owned = 1</script>",
    "</div></main><h1>",
    "&lt;b&gt;",
    "${window.owned = 1}",
    "javascript:window.owned=1",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser for all tests."""
    opened = open_chromium(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.quit()


@pytest.fixture
def visit(browser: Chrome) -> Iterator[OpenPage]:
    """`visit(running)`: the page of a server."""

    def open_page(running: Running) -> Page:
        return Page(browser, str(running.client.base_url))

    yield open_page
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get("about:blank")  # a request that is still open ends here


def told(running: Running, **body: Any) -> list[list[str]]:
    """Tokens with text, as the API tells them."""
    body = {"model": MODEL, "prompt": "ab", "return_token_kinds": True, **OPTIONS, **body}
    (choice,) = running.client.post("/v1/completions", json=body).json()["choices"]
    tokens = choice["spec_compile"]["tokens"]
    return [[token["text"], token["kind"]] for token in tokens if token["text"]]


def percent(share: float) -> str:
    return f"{math.floor(100 * share + 0.5)} %"


def by_position(result: GenerationResult) -> list[str]:
    """Of the drafts that had a token at a place, how many had it accepted."""
    shares = []
    for place in range(1, result.stats.num_speculative_tokens + 1):
        drafted = [r for r in result.stats.rounds if r.num_draft_tokens >= place]
        accepted = [r for r in drafted if r.num_accepted_tokens >= place]
        shares.append(percent(len(accepted) / len(drafted)))
    return shares


def test_tokens_and_figures_are_those_of_the_runtime(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.generate("ab", **OPTIONS, max_tokens=60)
    wanted = running.plain.generate("ab", max_new_tokens=60, **OPTIONS)
    assert page.tokens() == told(running, max_tokens=60)
    assert page.text(".answer") == "ab" + (wanted.text or "")
    assert {kind for _, kind in page.tokens()} == {"accepted", "recovered", "bonus"}
    assert page.text("#acceptance_rate") == percent(wanted.stats.acceptance_rate)
    assert page.text("#block_efficiency") == f"{wanted.stats.block_efficiency:.2f}"
    assert float(page.text("#tokens_per_second")) > 0
    assert page.text("#ttft").endswith(" ms")
    shown = "return [...document.querySelectorAll('#chart .value')].map((one) => one.textContent)"
    assert page.run(shown) == by_position(wanted)
    assert page.complaints() == []


def test_kinds_differ_in_colour_and_in_line(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.generate("ab", **OPTIONS, max_tokens=60)
    style = (
        "const ink = document.querySelector(`.answer .token.${arguments[0]} .ink`);"
        "const { color, textDecorationLine, textDecorationStyle } = getComputedStyle(ink);"
        "return [color, `${textDecorationLine} ${textDecorationStyle}`]"
    )
    styles = [page.run(style, kind) for kind in ("accepted", "recovered", "bonus")]
    assert len({colour for colour, _ in styles}) == 3
    assert [line for _, line in styles] == ["underline solid", "underline wavy", "underline double"]
    assert page.run("return document.querySelector('.token.bonus').title") == "bonus"


def test_the_target_alone(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.wait_for_model()
    assert not page.find("#legend [data-kind=target]").is_displayed()
    page.fill()
    page.find("#speculative").click()
    page.generate("ab", **OPTIONS, max_tokens=20)
    assert page.tokens() == told(running, max_tokens=20, speculative=False)
    assert page.find("#legend [data-kind=target]").is_displayed()
    assert page.text("#acceptance_rate") == "–"


def test_a_conversation_goes_on(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.wait_for_model()
    page.run("document.querySelector('[value=chat]').click()")
    page.generate("ab", **OPTIONS, max_tokens=9, stops="ca\nbb", system="a")
    assert page.find("#prompt").get_property("value") == ""
    page.generate("c")
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "ab"}]
    first = running.plain.chat(messages, max_new_tokens=9, stop=["ca", "bb"], **OPTIONS)
    assert first.text
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "c"}]
    second = running.plain.chat(messages, max_new_tokens=9, stop=["ca", "bb"], **OPTIONS)
    said = "return [...document.querySelectorAll('.turn .text')].map((one) => one.textContent)"
    assert page.run(said) == ["ab", first.text, "c", second.text]


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_cancels_the_request(start: StartServer, visit: OpenPage, how: str) -> None:
    running = start(num_slots=1)
    page = visit(running)
    page.wait_for_model()
    calls = count(1)
    running.engine.on_call = lambda: running.engine.close() if next(calls) == 6 else None
    page.fill(**OPTIONS, max_tokens=60, prompt="ab")
    page.find("#prompt").send_keys("\ue009\ue007")  # Control and Enter
    running.engine.wait_for_call()
    page.wait(page.tokens)
    if how == "button":
        page.find("#stop").click()
    else:
        page.browser.switch_to.active_element.send_keys("\ue00c")  # Escape
    page.wait(lambda: "Stopped after" in page.text("#status"))
    while not any(t.row.finished for t in running.shared.scheduler._seated()):
        os.sched_yield()  # the server notices while the engine stands still
    running.engine.open()
    whole = running.plain.generate("ab", max_new_tokens=60, **OPTIONS).text or ""
    shown = "".join(text for text, _ in page.tokens())
    assert whole.startswith(shown) and 0 < len(shown) < len(whole)
    running.engine.on_call = lambda: None
    page.generate("ab")  # the slot is free again
    assert page.text(".turn:last-child .answer") == "ab" + whole
    assert running.shared.scheduler.snapshot().finished["cancelled"] == 1


def test_stopped_before_the_first_token(start: StartServer, visit: OpenPage) -> None:
    running = start()
    page = visit(running)
    page.wait_for_model()
    page.run("document.querySelector('[value=chat]').click()")
    running.engine.close()
    page.fill(prompt="ab")
    page.find("#send").click()
    running.engine.wait_for_call()
    page.find("#stop").click()
    page.wait(lambda: page.text("#status") == "Stopped before the first token")
    running.engine.open()
    assert page.find("#prompt").get_property("value") == "ab"
    assert page.find("#empty").is_displayed()


def test_a_wrong_key_is_said_and_no_key_is_kept(start: StartServer, visit: OpenPage) -> None:
    page = visit(start(api_key="right"))
    page.wait(lambda: "asks for an API key" in page.text("#problem"))
    assert page.run("return document.activeElement.id") == "key"
    page.find("#key").send_keys("wrong\ue004")
    page.wait(lambda: page.text("#problem") == "The server refused this API key.")
    page.find("#key").clear()
    page.find("#key").send_keys("right\ue004")
    page.wait_for_model()
    page.wait(lambda: not page.find("#problem").is_displayed())
    page.generate("ab", **OPTIONS, max_tokens=9)
    assert page.tokens()
    kept = "return [localStorage.length, sessionStorage.length, document.cookie, location.href]"
    assert page.run(kept)[:3] == [0, 0, ""]
    page.browser.refresh()
    page.wait(lambda: "asks for an API key" in page.text("#problem"))


def test_markup_is_text(start: StartServer, visit: OpenPage) -> None:
    pieces = {HOSTILE[i % len(HOSTILE)] + str(i): i for i in range(VOCAB) if i != EOS}
    vocab = {"<eos>": EOS, **pieces}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<eos>"))
    tokenizer.decoder = decoders.Fuse()
    running = start(tokenizer=BundleTokenizer(tokenizer, {}, None))
    page = visit(running)
    prompt = "".join(HOSTILE)
    page.generate(prompt, seed=4, temperature=1, max_tokens=80)
    wanted = running.plain.generate([EOS], max_new_tokens=80, seed=4, temperature=1.0)
    said = tokenizer.decode([token for token in wanted.token_ids if token != EOS])
    assert all(piece in said for piece in HOSTILE)
    assert page.text(".answer") == prompt + said
    assert page.run("return document.querySelectorAll('main img, main script, h1').length") == 1
    assert page.run("return window.owned ?? null") is None
    refused = "try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name }"
    assert page.run(refused) == "TypeError"  # the policy's own refusal


def test_errors_are_shown_and_nothing_is_lost(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.wait_for_model()
    page.fill(prompt="a" * 200)
    page.find("#send").click()
    message = page.wait(lambda: page.text("#problem"))
    assert "200 tokens" in message or "96" in message
    assert page.find("#prompt").get_property("value") == "a" * 200
    assert page.run("return document.querySelectorAll('.turn').length") == 0
    running.engine.fails_at = 0.5
    page.fill(prompt="ab", temperature=0.5)
    page.find("#send").click()
    page.wait(lambda: page.text("#problem") == "the engine failed")
    page.generate("ab", temperature=1)
    assert not page.find("#problem").is_displayed()


def test_everything_has_a_name_and_is_reached_by_tab(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    page.wait_for_model()
    page.fill(prompt="ab")
    page.run("document.getElementById('theme').focus()")
    reached = set()
    for _ in range(40):
        focused = page.browser.switch_to.active_element
        assert focused.accessible_name, focused.get_attribute("outerHTML")
        reached.add(focused.get_attribute("id") or focused.text or focused.get_attribute("name"))
        focused.send_keys("\ue004")
        if page.run("return document.activeElement === document.body"):
            break
    fields = "max_tokens temperature top_p top_k min_p seed stops speculative".split()
    buttons = ["theme", "transcript", "mode", "prompt", "send", "clear", "Options", "API key"]
    assert reached >= {*fields, *buttons, "key"}


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_cut_off_on_narrow_screens(
    running: Running, visit: OpenPage, width: int
) -> None:
    page = visit(running)
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.generate("ab" * 30, **OPTIONS, max_tokens=20)
    wide = (
        "return [...document.querySelectorAll('body *')].filter((one) =>"
        "one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML)"
    )
    assert page.run(wide) == []
    assert page.run("return document.documentElement.scrollWidth") == width


def test_light_and_dark(running: Running, visit: OpenPage) -> None:
    page = visit(running)
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    found = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        found[scheme] = page.run(ground)
    assert found["light"] != found["dark"]
    for scheme in ("light", "dark"):
        page.choose("theme", scheme.title())
        assert page.run(ground) == found[scheme]
