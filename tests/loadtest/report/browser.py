"""A page in the system's Chromium, offline: what it says on its console, how wide it is, what one can read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, sync_playwright

from gateway.setup.light import checkout
from gateway.setup.progress import ProgressPrinter
from gateway.setup.system import ensure_program

READABLE = """
() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script, style, noscript, [hidden]")) continue;
    const style = getComputedStyle(node);
    const ink = rgb(node.closest("svg") ? style.fill : style.color), paper = ground(node);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    found.push([walker.currentNode.textContent.trim(), parseFloat(style.fontSize), (a + 0.05) / (b + 0.05)]);
  }
  return found;
}
"""
"""Every text of the page with its size in pixels and its contrast with what lies behind it."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, headless. Its sandbox needs privileges that containers lack; the page is our own."""
    found = ensure_program("chromium", checkout(), os.environ, ProgressPrinter(sys.stderr))
    environ = {**os.environ, **found.environ}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(found.path), env=environ, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page opened from a file, with everything it complained about or asked the network for."""

    def __init__(self, browser: Browser, file: Path, width: int, scheme: Any = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(file.as_uri())
        self.page.wait_for_function("[...document.querySelectorAll('.plot svg')].every((svg) => svg.childElementCount)")
        self.sideways_at_open = int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))
        """Pixels by which the page is wider than the window."""

    def _request(self, request: Request) -> None:
        if not re.match(r"file:|data:", request.url):
            self.asked.append(request.url)

    def texts(self) -> list[tuple[str, float, float]]:
        """(text, size, contrast)."""
        return [tuple(entry) for entry in self.page.evaluate(READABLE)]
