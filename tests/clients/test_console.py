"""The console of a real broker: each page by HTTP, and in headless Chromium (``make console``).

``TIDELOG_RECORD=1`` writes the pictures of docs/console.md.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

import tidelog
from benchmarks.rivals.process import free_port
from tests.support.admin import Admin
from tests.support.power.waiting import wait_until
from tests.support.requirements import require_tool
from tidelog.console.pages.records import MAX_RECORDS
from tidelog.console.rendering import link

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IN_BROWSER = pytest.mark.skipif(not os.environ.get("TIDELOG_CONSOLE"), reason="Chromium takes 300 MB: make console")
INSTALL = "apt-get install --no-install-recommends chromium"
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURE_BYTES = PAGE_BYTES = 100 * 1024
WAIT_MS = 60_000
HOSTILE = "<img src=x onerror=alert(1)>\"'&/.."
RECORDS = 40
PATHS = (
    link(), link("topics"), link("topics", "orders"), link("topics", "orders", "records"),
    link("topics", "orders", "records", key="key-7"), link("topics", "orders", "records", 0, 7), link("groups"),
    link("group", id="billing"), link("group", id=HOSTILE), link("transactions"), link("transaction", id=HOSTILE),
    link("compaction"), link("configuration"), link("configuration", find="log.retention"), link("access"),
    link("clients"), link("client", id=HOSTILE),
)  # fmt: skip


class World:
    """A broker with topics, groups, a transaction and clients, some of whose names are hostile."""

    def __init__(self) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        settings = {"admin.listener": self.address.removeprefix("http://"), "log.retention.hours": "72"}
        self.broker = tidelog.Broker(settings).start()
        admin = Admin(self.broker.bootstrap)
        admin.create("orders", 1, {"index.keys": "true", "index.tag.header": "tag", "cleanup.policy": "compact"})
        self.producer = Producer({"bootstrap.servers": self.broker.bootstrap, "client.id": HOSTILE, "log_level": 0})
        self.produce(RECORDS)
        self.transactional = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": HOSTILE, "log_level": 0}
        )
        self.transactional.init_transactions(60)
        self.transactional.begin_transaction()
        self.transactional.produce("payments", HOSTILE.encode())
        self.transactional.flush(60)
        self.consumers = [self._consumer(group) for group in ("billing", HOSTILE)]

    def produce(self, count: int) -> None:
        """Write records with keys, tags and JSON that has markup in it."""
        for number in range(count):
            value = f'{{"order": {number}, "note": "<script>alert({number})</script>"}}'
            self.producer.produce("orders", value, f"key-{number}", headers={"tag": "paid", HOSTILE: HOSTILE})
        assert self.producer.flush(60) == 0

    def _consumer(self, group: str) -> Consumer:
        consumer = Consumer({
            "bootstrap.servers": self.broker.bootstrap, "group.id": group, "client.id": HOSTILE,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe(["orders"])
        wait_until(lambda: consumer.poll(0.1) is not None)
        consumer.commit(asynchronous=False)
        return consumer

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.address + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.transactional.abort_transaction(60)
        self.broker.stop()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World()
    yield world
    world.stop()


def test_each_page_is_whole_small_and_free_of_foreign_markup(world: World) -> None:
    for path in PATHS:
        status, text = world.get(path)
        assert status == 200, (path, text[-800:])
        assert len(text.encode()) <= PAGE_BYTES, path
        assert "<img" not in text, path
        assert "<script>" not in text, path


def test_a_group_has_its_members_and_its_lag(world: World) -> None:
    _, before = world.get(link("group", id="billing"))
    assert ">consumer<" in before or ">classic<" in before
    assert re.search(r'id="lag">\d+<', before)
    world.produce(5)
    _, after = world.get(link("group", id="billing"))
    assert lag_of(after) == lag_of(before) + 5


def test_a_transaction_shows_what_it_has_open(world: World) -> None:
    _, text = world.get(link("transaction", id=HOSTILE))
    assert "Ongoing" in text
    assert "payments-0" in text


def test_a_value_of_the_configuration_says_where_it_comes_from(world: World) -> None:
    _, text = world.get(link("configuration", find="log.retention.hours"))
    row = re.search(r"log\.retention\.hours</a></th>(.*?)</tr>", text, re.DOTALL)
    assert row is not None
    assert "<code>72</code>" in row[1]
    assert ">file" in row[1]


def test_a_client_is_shown_with_its_connections(world: World) -> None:
    _, text = world.get(link("client", id=HOSTILE))
    assert text.count("127.0.0.1") >= 2


def lag_of(text: str) -> int:
    found = re.search(r'id="lag">([\d,]+)<', text)
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = require_tool("chromium", INSTALL)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, world: World) -> Iterator[Page]:
    """A page whose requests may go to the broker alone; what its scripts complain about fails the test."""
    context = browser.new_context(viewport={"width": 900, "height": 560}, color_scheme="light")
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(world.address)] == []
    assert complaints == []


def take_picture(page: Page, name: str, directory: Path) -> None:
    """Keep a picture of what is seen; of the documentation's own where they are recorded."""
    place = PICTURES if os.environ.get("TIDELOG_RECORD") == "1" else directory
    place.mkdir(exist_ok=True)
    picture = page.screenshot(path=place / f"{name}.png")
    assert len(picture) < PICTURE_BYTES


@IN_BROWSER
def test_each_page_is_shown_and_asks_no_other_machine(page: Page, world: World, tmp_path: Path) -> None:
    for place, path in enumerate(PATHS):
        page.goto(world.address + path)
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.images.length") == 0
        if not place:
            take_picture(page, "overview", tmp_path)


@IN_BROWSER
def test_pages_are_whole_without_scripts_and_dark_where_that_is_asked_for(browser: Browser, world: World) -> None:
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = context.new_page()
    for path in PATHS:
        page.goto(world.address + path)
        assert page.locator("h1").is_visible()
        assert page.locator("main").inner_text() != ""
    assert page.locator(".live").is_hidden()
    page.goto(world.address + link("topics", "orders", "records"))
    assert RECORDS <= page.locator("#records tbody tr").count() <= MAX_RECORDS
    context.close()


@IN_BROWSER
def test_a_record_is_found_by_its_key(page: Page, world: World, tmp_path: Path) -> None:
    page.goto(world.address + link("topics"))
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_role("link", name="Browse records").click()
    page.get_by_label("Key").fill("key-7")
    wait_until(lambda: "/records/0/7" in world.get(link("topics", "orders", "records", key="key-7"))[1])
    page.get_by_role("button", name="Show").click()
    rows = page.locator("#records tbody tr")
    assert rows.count() >= 1
    assert all("key-7" in text for text in rows.all_inner_texts())
    take_picture(page, "records", tmp_path)
    rows.last.get_by_role("link").click()
    assert '"order": 7' in page.locator("pre").last.inner_text()
    take_picture(page, "record", tmp_path)


@IN_BROWSER
def test_a_groups_lag_is_seen_moving_under_load(page: Page, world: World, tmp_path: Path) -> None:
    is_over = threading.Event()

    def load() -> None:
        while not is_over.wait(0.05):
            world.produce(20)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        page.goto(world.address + link("group", id="billing"))
        lag = page.locator("#lag")
        first = lag.inner_text()
        page.wait_for_function(
            "first => document.getElementById('lag').textContent !== first", arg=first, timeout=WAIT_MS
        )
        page.wait_for_selector(".chart polyline", timeout=WAIT_MS)
        assert lag_of(page.content()) > int(first.replace(",", ""))
        points = page.locator(".chart polyline").get_attribute("points")
        page.wait_for_function(
            "points => document.querySelector('.chart polyline').getAttribute('points') !== points", arg=points,
            timeout=WAIT_MS,
        )  # fmt: skip
        take_picture(page, "group", tmp_path)
    finally:
        is_over.set()
        thread.join(60)


@IN_BROWSER
def test_a_configs_origin_is_shown(page: Page, world: World, tmp_path: Path) -> None:
    page.goto(world.address + link("configuration"))
    page.get_by_label("only what was set").check()
    page.get_by_role("button", name="Show").click()
    row = page.locator("tr", has_text="log.retention.hours")
    assert "72" in row.inner_text()
    assert "file" in row.inner_text()
    take_picture(page, "configuration", tmp_path)


@IN_BROWSER
def test_a_keyboard_reaches_the_content_first(page: Page, world: World) -> None:
    page.goto(world.address + link("topics"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
