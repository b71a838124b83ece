"""The review page in a real browser: at the width of a phone, by keyboard alone, checked for accessibility.

A screenshot of each page is left in .local/review-page/.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_votes as votes
from tests.e2e.conftest import World
from tests.e2e.test_approvals import paused

pytestmark = pytest.mark.e2e

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHOTS = Path(__file__).parents[2] / ".local" / "review-page"
PHONE = {"width": 375, "height": 667}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        reason = "There is no Chromium on this machine: the review page was not tried in a browser."
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page without JavaScript, as wide as a phone."""
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    yield context.new_page()
    context.close()


def open_link(world: World, page: Any, approval_id: str) -> str:
    link = world.deployment.api_url + world.callback_path(approval_id)
    response = page.goto(link)
    assert response.status == 200
    return link


def shot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def is_as_wide_as_the_phone(page: Any) -> bool:
    box = page.locator("main").bounding_box()
    return box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]


def test_it_is_decided_by_keyboard_alone(world: World, page: Any) -> None:
    """Tab to the note, to the arguments, to the button: what is typed is what runs."""
    session, approval_id = paused(world)
    open_link(world, page, approval_id)
    shot(page, "pending")
    assert is_as_wide_as_the_phone(page)
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.locator("#note:focus").count():
            break
    page.keyboard.type("by keyboard")
    page.keyboard.press("Tab")
    assert page.locator("summary:focus").count() == 1
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"amount": 3}')
    page.keyboard.press("Tab")
    assert page.locator("button:focus").inner_text() == "Approve"
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    assert "Approved by" in page.locator("[role=status]").inner_text()
    shot(page, "approved")
    assert world.until(session, "finished")["text"] == "Paid."
    decision = world.call("GET", f"/approvals/{approval_id}").json()["decision"]
    assert (decision["note"], decision["args"]) == ("by keyboard", {"amount": 3})


def press_by_keyboard(page: Any, button: str) -> None:
    """Tab to the button, as far as it takes, and press it."""
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.locator("button:focus").count() and page.locator("button:focus").inner_text() == button:
            page.keyboard.press("Enter")
            page.wait_for_load_state()
            return
    raise AssertionError(f"No key leads to {button!r}.")


def test_two_vote_by_keyboard_alone(world: World, page: Any, browser: Any) -> None:
    """The first one is told that the vote counts, the second one sees whose there is; then the call runs."""
    from axe_playwright_python.sync_playwright import Axe

    session, approval_id = paused(world, "together")
    links = [world.deployment.api_url + votes.link_of(world, approval_id, name) for name in ("ada", "bob")]
    page.goto(links[0])
    press_by_keyboard(page, "Approve")
    assert "one more approval is missing" in page.locator("[role=status]").inner_text()
    assert page.get_by_role("button").all_inner_texts() == ["Reject after all"]
    assert is_as_wide_as_the_phone(page)
    shot(page, "voted")
    context = browser.new_context(viewport=PHONE, bypass_csp=True)
    checked = context.new_page()
    for link in links:
        checked.goto(link)
        assert Axe().run(checked).violations_count == 0
    context.close()
    page.goto(links[1])
    assert "Approvals: 1 of 2" in page.locator("main").inner_text()
    assert "ada, " in page.get_by_role("listitem").inner_text()
    assert is_as_wide_as_the_phone(page)
    shot(page, "votes")
    press_by_keyboard(page, "Approve")
    assert "Approved by ada and bob" in page.locator("[role=status]").inner_text()
    assert world.until(session, "finished")["text"] == "Paid by both."
    assert world.ledger.count(session, "pay") == 1


def test_a_question_is_answered_by_keyboard_alone(world: World, page: Any, browser: Any) -> None:
    """Markup of the model is text; enter in the area starts a line and sends nothing; a button sends what was typed."""
    from axe_playwright_python.sync_playwright import Axe

    session, approval_id = paused(world, "ask")
    link = open_link(world, page, approval_id)
    assert page.locator(".asked").inner_text() == "Which <b>colour</b>?"
    assert page.get_by_role("button").all_inner_texts() == ["red", "deep blue", "Send this answer", "Decline to answer"]
    assert is_as_wide_as_the_phone(page)
    shot(page, "question")
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=PHONE, color_scheme=scheme, bypass_csp=True)
        checked = context.new_page()
        checked.goto(link)
        assert Axe().run(checked).violations_count == 0
        context.close()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.locator("#text:focus").count():
            break
    page.keyboard.type("green")
    page.keyboard.press("Enter")
    page.keyboard.type("as grass")
    press_by_keyboard(page, "Send this answer")
    assert "Answered by" in page.locator("[role=status]").inner_text()
    shot(page, "answered")
    world.until(session, "finished")
    [decision] = [world.call("GET", f"/approvals/{approval_id}").json()["decision"]]
    assert decision["answer"] == "green\nas grass"


def test_an_option_is_pressed_by_keyboard(world: World, page: Any) -> None:
    """The first tab leads to the first option; pressing one is the answer."""
    session, approval_id = paused(world, "ask")
    open_link(world, page, approval_id)
    page.keyboard.press("Tab")
    assert page.locator("button:focus").inner_text() == "red"
    press_by_keyboard(page, "deep blue")
    assert "deep blue" in page.locator("[role=status]").inner_text()
    world.until(session, "finished")
    assert page.get_by_role("button").count() == 0


def test_a_fault_is_shown_and_what_was_typed_stays(world: World, page: Any) -> None:
    """Arguments that do not fit decide nothing; corrected, they do. The link is used up then."""
    session, approval_id = paused(world)
    link = open_link(world, page, approval_id)
    page.locator("summary").click()
    page.locator("#args").fill('{"amount": "much"}')
    page.locator("#note").fill("let me see")
    page.get_by_role("button", name="Approve").click()
    assert "Nothing was decided." in page.get_by_role("alert").inner_text()
    assert page.locator("#note").input_value() == "let me see"
    shot(page, "fault")
    page.get_by_role("button", name="Reject").click()
    assert "Rejected by" in page.locator("[role=status]").inner_text()
    page.goto(link)
    assert page.get_by_role("button").count() == 0
    world.until(session, "finished")
    assert world.ledger.count(session, "pay") == 0


def test_it_passes_an_accessibility_check(world: World, browser: Any) -> None:
    """axe finds nothing on the page that asks, on the one that was answered, and on that of a wrong link."""
    from axe_playwright_python.sync_playwright import Axe

    _, approval_id = paused(world)
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=PHONE, color_scheme=scheme, bypass_csp=True)
        page = context.new_page()
        open_link(world, page, approval_id)
        page.locator("summary").click()
        assert Axe().run(page).violations_count == 0
        page.goto(world.deployment.api_url + "/callbacks/wrong")
        assert Axe().run(page).violations_count == 0
        if scheme == "dark":
            open_link(world, page, approval_id)
            page.get_by_role("button", name="Reject").click()
            assert Axe().run(page).violations_count == 0
        context.close()


def test_its_policy_lets_nothing_in(world: World, browser: Any) -> None:
    """The style is the page's own, and a script that somebody managed to place would not run."""
    _, approval_id = paused(world)
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    open_link(world, page, approval_id)
    assert refused == []
    ran = page.evaluate(
        """() => { const s = document.createElement("script"); s.textContent = "window.ran = true";
        document.body.append(s); return window.ran === true }"""
    )
    assert not ran
    assert any("Content Security Policy" in text for text in refused)
    context.close()
