"""What an operator reads about a broken file: every problem, with line, key, expected and found."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import certifi
import pytest

from gateway.config.load import explain, load_settings
from gateway.errors import ConfigurationError, ConfigurationProblems, UnknownKeyError

BROKEN: dict[str, tuple[str, list[str]]] = {
    "empty": (
        "",
        ["gateway.yaml:1: expected a configuration with at least `models`, found an empty file"],
    ),
    "only comments": (
        "# nothing yet\n",
        ["gateway.yaml:1: expected a configuration with at least `models`, found an empty file"],
    ),
    "a bare list": (
        "- a\n- b\n",
        ["gateway.yaml:1: expected keys at the top of the file, such as `models:`, found a list"],
    ),
    "a bare word": (
        "\nllama\n",
        ["gateway.yaml:2: expected keys at the top of the file, such as `models:`, found a single value"],
    ),
    "tab": (
        "models:\n\tm: {model: x}\n",
        ["gateway.yaml:2: a tab is used for indentation; YAML wants spaces"],
    ),
    "anchors": (
        "models:\n  a: &base {model: x}\n  b: *base\n",
        [
            "gateway.yaml:2: YAML anchors and aliases (`&base`) are not supported; write the value out",
            "gateway.yaml:3: YAML anchors and aliases (`*base`) are not supported; write the value out",
        ],
    ),
    "merge key": (
        "models:\n  m:\n    <<: {replicas: 2}\n    model: x\n",
        ["gateway.yaml:3: models.m: merge keys (`<<`) are not supported; write the keys out"],
    ),
    "tag": (
        "models:\n  m:\n    model: !!python/name:os.system x\n",
        [
            "gateway.yaml:3: models.m.model: YAML tags such as !!python/name:os.system are not supported; "
            "write plain text"
        ],
    ),
    "unclosed": (
        "models:\n  m: {model: x\nlisten: {}\n",
        ["gateway.yaml:3: the file is not valid YAML: expected ',' or '}', but got ':'"],
    ),
    "two documents": (
        "models: {m: {model: x}}\n---\nmodels: {m: {model: x}}\n",
        ["gateway.yaml:2: expected one YAML document, found a second one after `---`"],
    ),
    "control character": (
        "models:\n  m: {model: 'x\x01'}\n",
        ["gateway.yaml:2: the file holds a character that YAML does not allow (U+0001)"],
    ),
    "duplicate key": (
        "models:\n  m: {model: x}\nlisten: {}\nmodels: {}\n",
        ["gateway.yaml:4: models: the key is given twice, first on line 1; keep one"],
    ),
    "no models": (
        "listen: {port: 80}\n",
        ["gateway.yaml:1: models: required, found nothing: Public models by name"],
    ),
    "models is empty": (
        "listen: {}\nmodels: {}\n",
        ["gateway.yaml:2: models: expected at least 1 entry, found a mapping"],
    ),
    "models is null": (
        "models:\n",
        ["gateway.yaml:1: models: expected a mapping (keys with values below it), found nothing"],
    ),
    "misspelt section": (
        "modles:\n  m: {model: x}\n",
        [
            "gateway.yaml:1: modles: unknown key; did you mean models?",
            "gateway.yaml:1: models: required, found nothing: Public models by name",
        ],
    ),
    "key in the wrong section": (
        "port: 9000\nmodels:\n  m:\n    model: x\n    max_model_len: 4096\n",
        [
            "gateway.yaml:1: port: unknown key here; did you mean listen.port?",
            "gateway.yaml:5: models.m.max_model_len: unknown key here; did you mean models.m.launch.max_model_len?",
        ],
    ),
    "a key like no other": (
        "models: {m: {model: x}}\ncors: {zzzz: 1}\n",
        ["gateway.yaml:2: cors.zzzz: unknown key; this section knows allow_origins"],
    ),
    "wrong types": (
        """\
        listen: {port: "80"}
        models:
          m:
            model: x
            replicas: true
            aliases: other
            launch:
              dtype: no
              gpus: [0, one]
              kv_cache_memory_bytes: [1]
              max_num_seqs: 1.5
        drain_timeout_s: soon
        logging: {format: xml, requests: 1}
        """,
        [
            "gateway.yaml:1: listen.port: expected a whole number, found '80'",
            "gateway.yaml:5: models.m.replicas: expected a whole number, found true (quote it if text is meant)",
            "gateway.yaml:6: models.m.aliases: expected a list, found 'other'",
            "gateway.yaml:8: models.m.launch.dtype: expected text, found false (quote it if text is meant)",
            "gateway.yaml:9: models.m.launch.gpus[1]: expected a whole number, found 'one'",
            "gateway.yaml:10: models.m.launch.kv_cache_memory_bytes: expected a whole number or text, found a list",
            "gateway.yaml:11: models.m.launch.max_num_seqs: expected a whole number, found 1.5",
            "gateway.yaml:12: drain_timeout_s: expected a number, found 'soon'",
            "gateway.yaml:13: logging.format: expected auto, json or text, found 'xml'",
            "gateway.yaml:13: logging.requests: expected true or false, found 1",
        ],
    ),
    "out of range": (
        """\
        listen: {port: 0}
        admin: {port: 65536}
        models:
          m:
            model: x
            retries: 11
            launch: {gpu_memory_utilization: 1.2, max_model_len: 0, gpus: [-1], tensor_parallel_size: 2}
            timeouts: {idle_s: 0}
        watch: {backoff_initial_s: 90}
        drain_timeout_s: .inf
        processes: 65
        """,
        [
            "gateway.yaml:1: listen.port: expected at least 1, found 0",
            "gateway.yaml:2: admin.port: expected at most 65535, found 65536",
            "gateway.yaml:6: models.m.retries: expected at most 10, found 11",
            "gateway.yaml:7: models.m.launch.max_model_len: expected at least 1 (or -1: as long as fits), found 0",
            "gateway.yaml:7: models.m.launch.gpus[0]: expected the index of a GPU, 0 or more, found -1",
            "gateway.yaml:7: models.m.launch.gpus: expected at least 2 (tensor_parallel_size), found 1",
            "gateway.yaml:7: models.m.launch.gpu_memory_utilization: expected at most 1, found 1.2",
            "gateway.yaml:8: models.m.timeouts.idle_s: expected more than 0, found 0",
            "gateway.yaml:9: watch.backoff_initial_s: backoff_initial_s is 90, more than backoff_max_s (60)",
            "gateway.yaml:10: drain_timeout_s: expected a finite number, found .inf",
            "gateway.yaml:11: processes: expected at most 64, found 65",
        ],
    ),
    "ports": (
        "models: {m: {model: x}}\nlisten: {host: 0.0.0.0, port: 8001}\n",
        ["gateway.yaml:2: listen.port: listen.port and admin.port are both 8001; they must differ"],
    ),
    "names": (
        """\
        models:
          llama: {model: x, aliases: [default, default]}
          qwen: {model: y, aliases: [llama], launch: {lora_modules: {default: a}}}
          "": {model: z}
          org/m: {model: a}
          org-m: {model: b}
        """,
        [
            "gateway.yaml:2: models.llama.aliases[1]: 'default' is already the name of models.llama.aliases[0]; "
            "names must differ",
            "gateway.yaml:3: models.qwen.aliases[0]: 'llama' is already the name of models.llama; names must differ",
            "gateway.yaml:3: models.qwen.launch.lora_modules.default: 'default' is already the name of "
            "models.llama.aliases[0]; names must differ",
            "gateway.yaml:4: models.'': expected a model name of 1 to 256 printable characters, found ''",
            "gateway.yaml:6: models.org-m: its workers would have the same names as those of 'org/m' (org-m-0); "
            "rename one",
        ],
    ),
    "sources": (
        """\
        models:
          none: {}
          static: {workers: [{url: "http://h:1"}], launch: {dtype: auto}}
          folder: {model: ./no/such/folder}
          home: {model: ~/model}
          blank: {model: " "}
          engine: {model: x, engine: nightly}
        """,
        [
            "gateway.yaml:2: models.none: set model (to launch workers) or workers (to use running ones)",
            "gateway.yaml:3: models.static.launch: has no effect without model: nothing is launched",
            "gateway.yaml:4: models.folder.model: expected a folder with a model, found none at HERE/no/such/folder",
            "gateway.yaml:5: models.home.model: `~` is not expanded; write the folder out instead of ~/model",
            "gateway.yaml:6: models.blank.model: expected a hub id or a folder, found an empty text",
            "gateway.yaml:7: models.engine.engine: 'nightly' is not one of engines (default)",
        ],
    ),
    "static workers": (
        """\
        models:
          m:
            workers:
              - url: http://h:1
                api_key: sk-1
                api_key_file: missing.key
              - url: http://h:1
              - url: ftp://h:1
              - url: http://user:hunter2@h:1
              - url: http://h:1/v1
              - url: unix://run/vllm.sock
              - url: http://h:2
                tls_verify: false
              - api_key: 12345678
        """,
        [
            "gateway.yaml:5: models.m.workers[0].api_key: set api_key or api_key_file, not both",
            "gateway.yaml:6: models.m.workers[0].api_key_file: expected a readable file, found that HERE/missing.key "
            "cannot be read (No such file or directory)",
            "gateway.yaml:7: models.m.workers[1].url: the same worker as workers[0]; list it once",
            "gateway.yaml:8: models.m.workers[2].url: expected http://HOST:PORT, https://HOST:PORT or "
            "unix:///path/to.sock, found 'ftp://h:1'",
            "gateway.yaml:9: models.m.workers[3].url: expected http://HOST:PORT, https://HOST:PORT or "
            "unix:///path/to.sock, found a user name or password in it; use api_key_file",
            "gateway.yaml:10: models.m.workers[4].url: expected the worker's root, found 'http://h:1/v1'; remove /v1, "
            "the gateway adds it",
            "gateway.yaml:11: models.m.workers[5].url: expected an absolute path, as in unix:///run/vllm.sock, found "
            "'unix://run/vllm.sock'",
            "gateway.yaml:13: models.m.workers[6].tls_verify: has an effect only with https, found http://h:2",
            "gateway.yaml:14: models.m.workers[7].api_key: expected text, found a value that is not shown",
            "gateway.yaml:14: models.m.workers[7].url: required, found nothing: `http://HOST:PORT`, "
            "`https://HOST:PORT` or `unix:///path/to.sock`, optionally with a path prefix",
        ],
    ),
    "launch": (
        """\
        models:
          m:
            model: x
            launch:
              kv_cache_memory_bytes: 2GB
              extra_args: [--seed, "1", --port=9, --served_model_name, y]
              env: {CUDA_VISIBLE_DEVICES: "0", "A=B": c}
              enable_lora: false
              lora_modules: {sql: org/sql}
            default_max_tokens: 100
            max_tokens_limit: 10
            timeouts: {total_s: 10, connect_s: 20}
        cors: {allow_origins: ["https://ok.example", "*", ok.example, https://a.example/path]}
        engines: {default: {python: no/python}}
        """,
        [
            "gateway.yaml:5: models.m.launch.kv_cache_memory_bytes: expected bytes such as 2G, 512M or 1.5g "
            "(K, M, G, T: 1024; k, m, g, t: 1000), found '2GB'",
            "gateway.yaml:6: models.m.launch.extra_args[2]: --port is set by the gateway; remove it",
            "gateway.yaml:6: models.m.launch.extra_args[3]: --served-model-name is set by the gateway; remove it",
            "gateway.yaml:7: models.m.launch.env.CUDA_VISIBLE_DEVICES: set models.m.launch.gpus instead",
            "gateway.yaml:7: models.m.launch.env.A=B: expected the name of a variable, found 'A=B'",
            "gateway.yaml:8: models.m.launch.enable_lora: lora_modules are given, so it cannot be false",
            "gateway.yaml:10: models.m.default_max_tokens: is 100, more than max_tokens_limit (10)",
            "gateway.yaml:12: models.m.timeouts.connect_s: connect_s is 20, more than total_s (10)",
            "gateway.yaml:13: cors.allow_origins[2]: expected `*` or an origin such as https://chat.example.org "
            "(no path), found 'ok.example'",
            "gateway.yaml:13: cors.allow_origins[3]: expected `*` or an origin such as https://chat.example.org "
            "(no path), found 'https://a.example/path'",
            "gateway.yaml:14: engines.default.python: expected a Python interpreter that has vLLM, found that "
            "HERE/no/python does not exist; set it (or ENGINE_PYTHON=, --engine-python) to one, or leave it out to "
            "have vLLM installed",
        ],
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, so that messages name the file as the operator would."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_every_problem_is_told_with_its_line_and_key(here: Path, name: str) -> None:
    """Golden messages: a change here is a change of what operators read."""
    text, expected = BROKEN[name]
    file = Path("gateway.yaml")
    file.write_text(dedent(text))

    problems = explain(file)

    assert expected == [str(problem).replace(str(here), "HERE") for problem in problems]
    with pytest.raises(ConfigurationProblems) as caught:
        load_settings(file)
    assert "\n".join(expected) == str(caught.value).replace(str(here), "HERE")
    assert 2 == caught.value.exit_code


def test_the_first_problem_s_place_is_on_the_error_itself(here: Path) -> None:
    """For programs that show one problem at its place."""
    Path("gateway.yaml").write_text("models: {m: {model: x, replicsa: 2}}\n")

    with pytest.raises(ConfigurationError) as caught:
        load_settings(Path("gateway.yaml"))

    assert ("models.m.replicsa", 1, "gateway.yaml") == (caught.value.key, caught.value.line, caught.value.file)
    assert isinstance(caught.value, ConfigurationProblems)
    assert [UnknownKeyError] == [type(problem) for problem in caught.value.problems]


def test_a_file_that_cannot_be_read_is_said(here: Path) -> None:
    """Missing, a folder, or no UTF-8."""
    Path("folder").mkdir()
    Path("latin.yaml").write_bytes(b"models: {m\xfc: {}}\n")

    assert ["missing.yaml: the file cannot be read (No such file or directory)"] == list(
        map(str, explain(Path("missing.yaml")))
    )
    assert ["folder: the file cannot be read (Is a directory)"] == list(map(str, explain(Path("folder"))))
    assert ["latin.yaml: expected UTF-8 text, found byte 0xfc"] == list(map(str, explain(Path("latin.yaml"))))


def test_a_file_of_another_kind_is_refused_by_its_size(here: Path) -> None:
    """Given a model's weights by mistake, nobody waits for the parser."""
    Path("weights.bin").write_bytes(b"a" * (1024 * 1024 + 1))

    assert ["weights.bin: expected a configuration of at most 1048576 bytes, found more"] == list(
        map(str, explain(Path("weights.bin")))
    )


def test_deep_nesting_is_said_and_does_not_crash(here: Path) -> None:
    """A file of brackets, which the parser would follow until the stack is full."""
    Path("deep.yaml").write_text("a: " + "[" * 1_500 + "]" * 1_500)

    assert ["deep.yaml: the file is nested too deeply to be a configuration"] == list(
        map(str, explain(Path("deep.yaml")))
    )


def test_secrets_are_never_shown(here: Path) -> None:
    """Neither of the wrong type, nor in a wrong place, nor in a URL."""
    secret = "hunter2" * 3
    Path("gateway.yaml").write_text(
        dedent(f"""\
        models:
          m:
            api_key: {secret}
            workers:
              - {{url: "http://u:{secret}@h:1", api_key: [{secret}]}}
              - {{url: "http://h:2", api_key_file: {{a: {secret}}}}}
        """)
    )

    problems = "\n".join(map(str, explain(Path("gateway.yaml"))))

    assert problems
    assert secret not in problems


def test_a_path_that_is_no_path_is_said(here: Path) -> None:
    """A NUL, which YAML can write and no system can open."""
    Path("gateway.yaml").write_text(
        'models: {m: {model: "/\\0", workers: [{url: "http://h:1", api_key_file: "a\\0"}]}}\n'
        'engines: {default: {python: "p\\0"}}\n'
    )

    assert ["models.m.model", "models.m.workers[0].api_key_file", "engines.default.python"] == [
        problem.key for problem in explain(Path("gateway.yaml"))
    ]


def test_a_certificate_authority_that_is_none_is_said(here: Path) -> None:
    """Before every probe of the worker fails."""
    Path("ca.pem").write_text("-----BEGIN NONSENSE-----\n")
    Path("real.pem").write_bytes(Path(certifi.where()).read_bytes())
    workers = "[{url: 'https://h:1', tls_ca_file: ca.pem}, {url: 'https://h:2', tls_ca_file: real.pem}]"
    Path("gateway.yaml").write_text(f"models: {{m: {{workers: {workers}}}}}")

    (problem,) = map(str, explain(Path("gateway.yaml")))

    expected = f"expected certificates in PEM form, found that {here}/ca.pem holds none"
    assert problem.startswith(f"gateway.yaml:1: models.m.workers[0].tls_ca_file: {expected}")


def test_an_empty_key_file_is_said(here: Path) -> None:
    """Before the first request fails with 401."""
    Path("key").touch()
    Path("gateway.yaml").write_text("models: {m: {workers: [{url: 'http://h:1', api_key_file: key}]}}")

    expected = f"expected a readable file, found that {here}/key is empty"
    assert [f"gateway.yaml:1: models.m.workers[0].api_key_file: {expected}"] == list(
        map(str, explain(Path("gateway.yaml")))
    )
