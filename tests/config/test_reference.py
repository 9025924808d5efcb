"""The generated reference of all keys is complete and current."""

from __future__ import annotations

from pathlib import Path

from gateway.config.reference import main, markdown
from gateway.config.wording import sections

REFERENCE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_reference_is_current(tmp_path: Path) -> None:
    """`docs/configuration.md` is what the code would write; the check tells when it is not."""
    stale = tmp_path / "configuration.md"
    stale.write_text("old")

    assert markdown() == REFERENCE.read_text(encoding="utf-8")
    assert 0 == main(["--check", str(REFERENCE)])
    assert 1 == main(["--check", str(stale)])
    assert 1 == main(["--check", str(tmp_path / "missing.md")])
    assert 0 == main([str(stale)])
    assert 0 == main(["--check", str(stale)])


def test_every_key_has_its_effect_described() -> None:
    """A key without a description cannot be added, nor a section without a purpose."""
    for place, section in sections():
        assert section.__doc__, place
        for name, info in section.model_fields.items():
            assert info.description, f"{place}.{name}"
            assert f"| `{name}` |" in markdown()
