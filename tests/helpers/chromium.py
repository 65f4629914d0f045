"""A real headless Chromium, driven by selenium, and the playground page in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

_SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
_SECONDS = 30


def open_chromium(profile: Path) -> Chrome:
    """Start the browser, or skip the test that asked for it.

    Args:
        profile: a new folder for its settings.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium here: install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in (*_SWITCHES, f"--user-data-dir={profile}", "--window-size=1280,900"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started: Chrome = webdriver.Chrome(options=options, service=Service(driver))
    return started


class Page:
    """The playground in a browser.

    Args:
        browser: shows nothing else meanwhile.
        address: of the server.
    """

    def __init__(self, browser: Chrome, address: str) -> None:
        self.browser = browser
        self.complaints()  # of the page before
        browser.get(address)

    def wait(self, condition: Callable[[], Any]) -> Any:
        """The first value of `condition` that is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, _SECONDS, 0.02).until(lambda _: condition())

    def find(self, selector: str) -> WebElement:
        """The first element that a CSS selector finds."""
        return self.browser.find_element("css selector", selector)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a function's body in the page."""
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """All text of an element, shown or not."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def fill(self, **values: object) -> None:
        """Type values into the fields of these ids."""
        self.run("for (const one of document.querySelectorAll('details')) one.open = true")
        for name, value in values.items():
            field = self.find(f"#{name}")
            field.clear()
            field.send_keys(str(value))

    def choose(self, field: str, option: str) -> None:
        """Choose an option of a select field by its text."""
        from selenium.webdriver.support.ui import Select

        Select(self.find(f"#{field}")).select_by_visible_text(option)

    def wait_for_model(self) -> None:
        """Return when the page knows what it talks to."""
        self.wait(lambda: self.run("return document.querySelectorAll('#model span').length"))

    def generate(self, prompt: str, **values: object) -> None:
        """Send a prompt and wait for the end of its answer."""
        self.wait_for_model()
        self.fill(**values, prompt=prompt)
        ended = self.run("return document.querySelectorAll('.end').length")
        self.find("#send").click()
        self.wait(lambda: self.run("return document.querySelectorAll('.end').length") > ended)

    def tokens(self) -> list[list[str]]:
        """Text and kind of every token of the last answer."""
        found: list[list[str]] = self.run(
            "const answer = [...document.querySelectorAll('.answer')].at(-1);"
            "return [...answer.querySelectorAll('.token')]"
            ".map((token) => [token.textContent, token.classList[1]])"
        )
        return found

    def complaints(self) -> list[str]:
        """What the browser has found wrong with the page: errors and breaches of its policy."""
        entries = self.browser.execute("getLog", {"type": "browser"})["value"]
        return [str(entry["message"]) for entry in entries]
