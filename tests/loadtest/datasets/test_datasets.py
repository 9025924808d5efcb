"""Files of recorded load: read as their formats say, recognised by their beginning, refused with the place."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from loadtest.datasets import FORMATS, recognise
from loadtest.datasets.entry import DatasetError, Entry
from loadtest.datasets.json_stream import array_elements

SAMPLES = Path(__file__).parent / "samples"


def read(name: str) -> list[Entry]:
    """All entries of a sample, by the format it is recognised as."""
    path = SAMPLES / name
    return list(FORMATS[recognise(path)](path))


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("azure_2023.csv", "azure"),
        ("azure_2024.csv", "azure"),
        ("burstgpt.csv", "burstgpt"),
        ("burstgpt_sessions.csv", "burstgpt"),
        ("mooncake.jsonl", "mooncake"),
        ("sharegpt.json", "sharegpt"),
    ],
)
def test_files_are_recognised_by_their_beginning(name: str, format: str) -> None:
    """Whatever they are called."""
    assert format == recognise(SAMPLES / name)


def test_azure_times_have_seven_digits_or_a_zone() -> None:
    """2023 without a zone and with ticks of 100 ns; 2024 with a zone, not always in order."""
    old, new = read("azure_2023.csv"), read("azure_2024.csv")

    assert [(210, 14), (1800, 9), (33, 120)] == [(e.prompt_tokens, e.output_tokens) for e in old]
    assert [0.0, 0.000456, 4.377] == pytest.approx([(e.at_s or 0) - (old[0].at_s or 0) for e in old], abs=1e-5)
    assert [1.25, 0.0, 1.75] == pytest.approx([(e.at_s or 0) - (new[1].at_s or 0) for e in new])


def test_burstgpt_has_seconds_and_perhaps_sessions() -> None:
    """Failed requests are told by their 0 tokens; whoever replays leaves them out."""
    assert [(5.0, 120, 30), (9.0, 640, 0), (12.0, 77, 210)] == [
        (e.at_s, e.prompt_tokens, e.output_tokens) for e in read("burstgpt.csv")
    ]
    assert [(100.5, "5f1e"), (101.0, "5f1e"), (130.0, None)] == [
        (e.at_s, e.session) for e in read("burstgpt_sessions.csv")
    ]


def test_mooncake_has_milliseconds_and_shared_blocks() -> None:
    """Empty lines are nothing."""
    assert [
        Entry(0.0, 1300, 40, blocks=(0, 1, 2)),
        Entry(0.0, 600, 12, blocks=(0, 3)),
        Entry(3.5, 1100, 7, blocks=(0, 1, 4)),
    ] == read("mooncake.jsonl")


def test_sharegpt_has_a_question_for_each_answer() -> None:
    """An answer that nobody asked for is left out; two questions in a row are one."""
    found = read("sharegpt.json")

    assert [
        "How long should green tea steep?",
        'And black tea? "Strong" ] please.',
        "Thanks.\nWhat is 2 + 2?",
    ] == [e.prompt for e in found]
    assert ["Two to three minutes, in water well below boiling.", "Four minutes.", "4"] == [e.answer for e in found]
    assert ["0:tea_0", "0:tea_0", "1:cut_17"] == [e.session for e in found]


HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        (
            "azure",
            "TIMESTAMP,ContextTokens\n",
            r"line 1: expected the columns TIMESTAMP, .*, found TIMESTAMP, ContextT",
        ),
        ("azure", "", "line 1: expected the columns .*, found an empty file"),
        (
            "azure",
            HEAD + "2023-11-16 18:01:05,1,2\nyesterday,1,2\n",
            "line 3, TIMESTAMP: expected a date .*'yesterday'",
        ),
        (
            "azure",
            HEAD + "2023-11-16 18:01:05,1.5,2\n",
            "line 2, ContextTokens: expected a whole number .* found '1.5'",
        ),
        ("azure", HEAD + "2023-11-16 18:01:05,1\n", "line 2, GeneratedTokens: expected 3 values, found fewer"),
        ("burstgpt", BURST + "5,ChatGPT,1,-2,3,API log\n", "line 2, Response tokens: expected .* found '-2'"),
        ("burstgpt", BURST + "noon,ChatGPT,1,2,3,API log\n", "line 2, Timestamp: expected seconds, found 'noon'"),
        ("burstgpt", BURST + '5,"ChatGPT\n', "expected CSV in UTF-8, found"),
        ("mooncake", "{}\n", "line 1, input_length: expected a number from 0 up, found nothing"),
        ("mooncake", '{"input_length": 1}\n\n[1]\n', "line 1, output_length: expected"),
        ("mooncake", "[1]\n", r"line 1: expected one JSON object, found \[1\]"),
        ("mooncake", "{'a': 1}\n", "line 1: expected one JSON object, found Expecting property name"),
        (
            "mooncake",
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}',
            "line 1, hash_ids: expected a list of whole numbers",
        ),
        (
            "mooncake",
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}',
            "line 1, hash_ids: expected at most one for each 512 of 513 tokens, found 3",
        ),
        ("sharegpt", '{"a": 1}', "line 1: expected a JSON array, found '{'"),
        ("sharegpt", "", "line 1: expected a JSON array, found an empty file"),
        ("sharegpt", '[\n\n{"id": 1}]', 'line 3: expected an object with a list "conversations", found {"id": 1}'),
        ("sharegpt", '[{"conversations": [{"from": 1}]}]', 'line 1, conversations: expected turns with texts "from"'),
        ("sharegpt", '[{"conversations": []}\n{', "line 2: expected ',' or ']' after an element, found '{'"),
        ("sharegpt", '[{"conversations": []},\n{"conv', "line 2: expected a JSON value, found Unterminated string"),
        ("sharegpt", '[{"conversations": []}', "expected ',' or ']' after an element, found the end"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(format: str, text: str, message: str, tmp_path: Path) -> None:
    """File, line, column, what was expected and what was found."""
    path = tmp_path / "file"
    path.write_text(text)

    with pytest.raises(DatasetError, match=message) as refused:
        list(FORMATS[format](path))
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("text", ["", "hello\n", '{"a": 1}\n', "a,b,c\n"])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    """With the formats there are."""
    (tmp_path / "file").write_text(text)

    with pytest.raises(DatasetError, match="expected one of the formats azure, burstgpt, mooncake, sharegpt"):
        recognise(tmp_path / "file")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """As an error of usage, with the system's own word."""
    with pytest.raises(DatasetError, match="expected a file that can be read, found No such file"):
        recognise(tmp_path / "gone")


def test_long_values_are_cut_in_messages(tmp_path: Path) -> None:
    """A megabyte of nonsense fills no screen."""
    (tmp_path / "file").write_text("[" + json.dumps({"x": "y" * 100_000}) + "]")

    with pytest.raises(DatasetError) as refused:
        list(FORMATS["sharegpt"](tmp_path / "file"))
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


def test_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    """Elements come while the rest of the file is not even valid; cuts between pieces fall anywhere."""
    elements = [{"n": n, "text": 'é"]\\' * (n % 7), "list": [n, -1.5e3, None]} for n in range(20_000)]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.write_text(json.dumps(elements, ensure_ascii=False, indent=1))
    broken.write_text(json.dumps(elements)[:-1] + ", nonsense")

    assert elements == [value for _, value in array_elements(whole)]
    assert elements[:5] == [value for _, value in islice(array_elements(broken), 5)]
    with pytest.raises(DatasetError, match="expected a JSON value"):
        list(array_elements(broken))


@pytest.mark.parametrize("text", ["[]", " [ ] ", "[1]", "[12, 345]"])
def test_small_arrays(text: str, tmp_path: Path) -> None:
    """Empty ones, and numbers at the end of a piece."""
    (tmp_path / "file").write_text(text)

    assert json.loads(text) == [value for _, value in array_elements(tmp_path / "file")]
