"""What README promises exists: targets, commands, codes, names, links, and a configuration that is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest
import typer.main

from gateway import errors
from gateway.cli import app
from gateway.config.load import explain
from gateway.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(title: str) -> str:
    """From a heading to the next of its kind."""
    return page("README.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "gateway").rglob("*.py")))


def error_classes(root: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield root
    for derived in root.__subclasses__():
        yield from error_classes(derived)


@pytest.mark.parametrize("name", PAGES)
def test_every_make_target_named_is_one(name: str) -> None:
    """In blocks and in running text."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", page("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )?make ([a-z][a-z-]*)", page(name), re.MULTILINE))

    assert set() == named - targets


@pytest.mark.parametrize("name", PAGES)
def test_every_link_into_the_checkout_leads_somewhere(name: str) -> None:
    """Files exist; headings of the page itself do too."""
    text = page(name)
    headings = {
        re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.*)", text, re.M)
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        if not path:
            assert anchor in headings, link
        elif "://" not in path:
            assert ((ROOT / name).parent / path).exists(), link


def test_every_command_named_is_one() -> None:
    """Subcommands of `workers` and `keys` too."""
    top = typer.main.get_command(app)
    for command, sub in re.findall(r"bin/gateway ([a-z]+)(?: ([a-z]+)\b)?", page("README.md")):
        found = top.commands.get(command)  # type: ignore[attr-defined]
        assert found is not None, command
        if hasattr(found, "commands") and sub:
            assert sub in found.commands, (command, sub)


def test_every_exit_code_is_in_the_table_and_no_other() -> None:
    """One row for each, `make` has its own sentence."""
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Operate"), re.MULTILINE)}

    assert {0, 130} | {one.exit_code for one in error_classes(errors.GatewayError)} == documented


def test_every_variable_error_code_and_metric_named_exists() -> None:
    """A renamed one would stay in the page for ever."""
    code = sources()
    for variable in set(re.findall(r"GATEWAY_[A-Z_]+", page("README.md"))) - {"GATEWAY_API_KEY"}:
        assert f'"{variable}"' in code, variable
    for row in re.findall(r"^\| [45]\d\d \|([^|]*)\|", section("API"), re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row):
            assert f'"{name}"' in code, name
    known = {metric.name for metric in CATALOGUE}
    assert set(re.findall(r"`(gateway_\w+)", page("README.md"))) <= known


def test_the_configuration_shown_is_one(tmp_path: Path) -> None:
    """As typed, with the two files that it names beside it."""
    (block,) = re.findall(r"```yaml\n(.*?)```", section("Configure"), re.DOTALL)
    (tmp_path / "fleet.yaml").write_text(block, encoding="utf-8")
    (tmp_path / "qwen.key").write_text("x\n", encoding="utf-8")
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())

    assert [] == explain(tmp_path / "fleet.yaml")


def test_every_metric_is_in_the_readmes_table() -> None:
    """With its labels and type, and none that is not exported."""
    rows = dict(
        re.findall(
            r"^\| `(gateway_[a-z_]+(?:\{[a-z,]+\})?)` \| (counter|gauge|histogram) \|", page("README.md"), re.MULTILINE
        )
    )
    exported = {
        f"{each.name}{{{','.join(each.labels)}}}" if each.labels else each.name: each.kind for each in CATALOGUE
    }

    assert exported == rows
