"""YAML text turned into plain data that remembers its lines. The only place where YAML is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

Path = tuple[str | int, ...]
"""Keys and list indices from the root of the file to a value."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a place. `line` overrides the line of `path` (for places that have no value)."""

    path: Path
    message: str
    line: int | None = None
    unknown_key: bool = False
    rule: bool = False
    """Found by a rule of the schema across several keys."""


@dataclass(slots=True)
class Document:
    """
    A mapping read from YAML, the line of every key and list item, and what was wrong with the text.

    The data is worth checking only when `findings` is empty or `readable` is true.
    """

    data: dict[str, object] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    readable: bool = True

    def line(self, path: Path) -> int | None:
        """Line of the nearest thing on the path that is in the file: a missing key has the line of its section."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read(text: str) -> Document:
    """Parse one YAML document. Never raises: what is wrong is in `findings`."""
    document = Document()
    try:
        anchors = list(_anchors(text))
        # The composer expands aliases before anyone can refuse them, so they are refused first.
        root = None if anchors else yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        return Document(findings=[_syntax(exc, text)], readable=False)
    except RecursionError:
        return Document(findings=[Finding((), "the file is nested too deeply to be a configuration")], readable=False)
    if anchors:
        return Document(findings=anchors, readable=False)
    if root is None:
        return Document(
            findings=[Finding((), "expected a configuration with at least `models`, found an empty file", line=1)],
            readable=False,
        )
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        message = f"expected keys at the top of the file, such as `models:`, found {found}"
        return Document(findings=[Finding((), message, line=_line(root))], readable=False)
    document.lines[()] = _line(root)
    document.data = _mapping(root, (), document)
    return document


def dotted(path: Path) -> str:
    """A path as people write it: `models.llama.workers[0].url`; keys with dots are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part if part and not any(char in part for char in ". []'\"") else repr(part)
            text += f".{plain}" if text else plain
    return text


def _value(node: yaml.Node, path: Path, document: Document) -> object:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        _plain_tag(node, path, document)
        values = []
        for index, item in enumerate(node.value):
            document.lines[(*path, index)] = _line(item)
            values.append(_value(item, (*path, index), document))
        return values
    assert isinstance(node, yaml.ScalarNode)
    return _scalar(node, path, document)


def _mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, object]:
    _plain_tag(node, path, document)
    data: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            message = "expected a plain key, found a list or mapping as key"
            document.findings.append(Finding(path, message, line=line))
            continue
        key = key_node.value
        if key_node.tag == "tag:yaml.org,2002:merge":
            document.findings.append(
                Finding(path, "merge keys (`<<`) are not supported; write the keys out", line=line)
            )
            continue
        if key in data:
            first = document.lines[(*path, key)]
            message = f"the key is given twice, first on line {first}; keep one"
            document.findings.append(Finding((*path, key), message, line=line))
            continue
        document.lines[(*path, key)] = line
        data[key] = _value(value_node, (*path, key), document)
    return data


def _scalar(node: yaml.ScalarNode, path: Path, document: Document) -> object:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if kind in ("str", "timestamp"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "int":
        return _whole_number(text)
    if kind == "float":
        value = _number(text)
        if value is not None and not math.isfinite(value):
            document.findings.append(Finding(path, f"expected a finite number, found {text}"))
            return 0.0
        return text if value is None else value
    document.findings.append(
        Finding(path, f"YAML tags such as {_short_tag(node.tag)} are not supported; write plain text")
    )
    return text


def _whole_number(text: str) -> int | str:
    """Decimal, hexadecimal, octal or binary; `1:30`, which YAML 1.1 takes for sixty-based ninety, stays text."""
    for base in (10, 0):
        try:
            return int(text.replace("_", ""), base)
        except ValueError:
            continue
    return text


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", "").replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf").lower())
    except ValueError:
        return math.nan if text.lower() == ".nan" else None


def _plain_tag(node: yaml.CollectionNode, path: Path, document: Document) -> None:
    if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        message = f"YAML tags such as {_short_tag(node.tag)} are not supported; remove it"
        document.findings.append(Finding(path, message, line=_line(node)))


def _short_tag(tag: str) -> str:
    return "!!" + tag.removeprefix("tag:yaml.org,2002:") if tag.startswith("tag:yaml.org,2002:") else tag


def _anchors(text: str) -> Iterator[Finding]:
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        name = getattr(event, "anchor", None)
        if name is not None and event.start_mark is not None:
            mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
            message = f"YAML anchors and aliases (`{mark}{name}`) are not supported; write the value out"
            yield Finding((), message, line=event.start_mark.line + 1)


def _line(node: yaml.Node) -> int:
    assert node.start_mark is not None, "the composer marks every node"
    line: int = node.start_mark.line + 1
    return line


def _syntax(exc: yaml.YAMLError, text: str) -> Finding:
    """One sentence for the parser's complaint, with the usual causes named."""
    if isinstance(exc, yaml.reader.ReaderError):
        line = text.count("\n", 0, exc.position) + 1
        return Finding((), f"the file holds a character that YAML does not allow (U+{exc.character:04X})", line=line)
    if not isinstance(exc, yaml.MarkedYAMLError):
        return Finding((), f"the file is not valid YAML: {exc}")
    mark = exc.problem_mark or exc.context_mark
    line_number = None if mark is None else mark.line + 1
    problem = exc.problem or exc.context or "it cannot be parsed"
    lines = text.splitlines()
    source = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\\t" in problem or "\t" in source[: len(source) - len(source.lstrip())]:
        return Finding((), "a tab is used for indentation; YAML wants spaces", line=line_number)
    if problem == "but found another document":
        return Finding((), "expected one YAML document, found a second one after `---`", line=line_number)
    return Finding((), f"the file is not valid YAML: {problem}", line=line_number)
