"""A real headless Chromium, and what a page must never do in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from gateway.setup.light import checkout
from gateway.setup.progress import ProgressPrinter
from gateway.setup.system import ensure_program

_COLOURS = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || !box.height || node.classList.contains("sr")) continue;
    const style = getComputedStyle(node);
    const ink = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(rgb(ink)), light(ground(node))].sort((x, y) => y - x);
    const text = node.textContent.trim().slice(0, 40);
    found.push({ text, px: parseFloat(style.fontSize), contrast: (a + 0.05) / (b + 0.05) });
  }
  return found;
}"""


PATIENCE_MS = 30_000
"""How long an expectation of a page may take to come true; Playwright's own five seconds are few on a busy machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium from the machine or unpacked by this project."""
    expect.set_options(timeout=PATIENCE_MS)
    found = ensure_program("chromium", checkout(), os.environ, ProgressPrinter(sys.stderr))
    environ = {**os.environ, **found.environ}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(found.path),
            env={name: value for name, value in environ.items() if value},
            args=["--no-sandbox", "--disable-gpu", "--no-proxy-server"],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, *, width: int, scheme: str = "light") -> Iterator[tuple[Page, list[str]]]:
    """A page `width` pixels wide, and everything that went wrong in it: console errors, exceptions, failed requests."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    page.set_default_timeout(2 * PATIENCE_MS)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def failed(request: Request) -> None:
        # Chromium reports a stream as aborted when the page has read its last byte before the network has told its end.
        if request.failure != "net::ERR_ABORTED":
            wrong.append(f"{request.url}: {request.failure}")

    page.on("requestfailed", failed)
    try:
        yield page, wrong
    finally:
        context.close()


def unreadable(page: Page) -> list[str]:
    """Visible texts under 12 px or with less contrast than 4.5 to 1 (WCAG AA)."""
    return [
        f"{each['text']!r}: {each['px']} px, contrast {each['contrast']:.2f}"
        for each in page.evaluate(_COLOURS)
        if each["px"] < 12 or each["contrast"] < 4.5
    ]


def overflow(page: Page) -> int:
    """Pixels that the page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider
