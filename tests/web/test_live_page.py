"""The live page in Chromium, before a pipeline of arithmetic shards; the driver blocks, so it works in a thread."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from engine.gateway.keys import new_key
from tests.decoder.local_pipeline import answer_to, pipeline
from tests.gateway.serving import Served, gateway

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.pipelines,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium: apt-get install chromium chromium-driver"),
    pytest.mark.xdist_group("web"),
]
SECONDS = 20  # for something to appear
SHOTS = os.environ.get("SHARDLINE_SCREENSHOTS", "")  # a folder, to look at them


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER or ""))
    yield driver
    driver.quit()


class Page:
    """What a person does and sees; every method blocks."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        browser.get(url)

    def find(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def wait(self, selector: str, text: str) -> None:
        """Until the element shows the text."""
        WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: text in self.find(selector).text)

    def shoot(self, name: str, width: int, height: int, scheme: str = "light") -> None:
        """See it in that size and colour; nothing may stick out at the side."""
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        if SHOTS:
            self.browser.save_screenshot(str(Path(SHOTS) / f"{name}-{scheme}-{width}.png"))
        assert self.browser.execute_script("return document.documentElement.scrollWidth") <= width


def look(test: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with pipeline() as here, gateway(here, **options) as served:
            await test(served)

    asyncio.run(main())


def test_a_person_sees_the_pipeline_asks_it_and_watches_a_stage_go(browser: webdriver.Chrome) -> None:
    async def test(served: Served) -> None:
        page = await asyncio.to_thread(Page, browser, served.url)
        await asyncio.to_thread(page.wait, "#health", "serving")
        await asyncio.to_thread(page.wait, "#pipeline", "stage 1")

        def talk() -> None:
            page.find("#question").send_keys("hello", Keys.ENTER)  # by keyboard alone
            page.wait("#talk .assistant", answer_to("hello", 150))
            page.wait("#tokens-now", "tokens/s")
            for width, height, scheme in ((1200, 900, "light"), (1200, 900, "dark"), (360, 740, "light")):
                page.shoot("serving", width, height, scheme)

        page.find("#max-tokens").clear()
        page.find("#max-tokens").send_keys("150")
        await asyncio.to_thread(talk)
        await served.here.kill(served.here.workers[1])
        await asyncio.to_thread(page.wait, "#faults", "stage 1 on here is gone")
        await asyncio.to_thread(page.wait, "#pipeline", "missing: start stage-run")
        await asyncio.to_thread(page.wait, "#health", "not serving")
        await asyncio.to_thread(page.shoot, "missing", 1200, 900)
        await asyncio.to_thread(page.shoot, "missing", 360, 740, "dark")
        await served.here.start_worker(1)
        await asyncio.to_thread(page.wait, "#faults", "stage 1 is served by here")
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
        assert not severe

    look(test)


def test_a_page_behind_keys_asks_for_one_and_html_in_answers_stays_text(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    secret = new_key(tmp_path / "keys", "alice")

    async def test(served: Served) -> None:
        page = await asyncio.to_thread(Page, browser, served.url)
        await asyncio.to_thread(page.wait, "#health", "an API key is needed")

        def enter() -> None:
            page.find("#key").send_keys(secret, Keys.ENTER)
            page.wait("#health", "serving")
            page.find("#question").send_keys("<b>x</b><script>document.title='broken'</script>", Keys.ENTER)
            page.wait("#talk .user", "<b>x</b><script>")

        await asyncio.to_thread(enter)
        assert browser.title == "Shardline"

    look(test, api_keys=tmp_path / "keys")


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(browser: webdriver.Chrome) -> None:
    async def test(served: Served) -> None:
        page = await asyncio.to_thread(Page, browser, served.url)
        await asyncio.to_thread(page.wait, "#health", "serving")

        def walk() -> None:
            reached: set[str] = set()
            for _ in range(12):
                browser.switch_to.active_element.send_keys(Keys.TAB)
                reached.add(browser.switch_to.active_element.get_attribute("id") or "")
            assert {"model", "talk", "question", "max-tokens", "send", "clear"} <= reached
            controls = browser.find_elements(By.CSS_SELECTOR, "button, input, select, textarea, meter")
            assert all(control.accessible_name for control in controls if control.is_displayed())

        await asyncio.to_thread(walk)

    look(test)
