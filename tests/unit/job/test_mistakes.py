"""Bad job files and the exact line that each gets: what, why, fix, at the right place, and nothing but a JobSpecError."""

import pytest

from orchestrator.capacity.location_rules import places_near
from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec, mistakes

COMMAND = "command: ls\n"
EMPTY = "1: the job file is empty; `tpujob init` writes one"
NOT_A_NAME = "is not a valid name: letters a-z, digits and `-`, a letter first and no `-` last; for example"
NO_PORT = "is not a port; write a number from 1 to 65535, such as 6006"
UNITS = "is not a duration: write numbers with units, such as 30m, 1h30m or 2d (6m to 7d)"

DIRECTORIES = (".", "..", "a/../../b", "/data", "~/data")

ZONES = places_near("mars", "v5litepod-8")


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(JobSpecError) as caught:
        job_spec.load(text, path="job.yaml")
    assert caught.value.exit_code == 64
    assert caught.value.hint == "`tpujob plan job.yaml` checks a file without creating anything"
    return caught.value.problems


@pytest.mark.parametrize(("text", "line"), [
    *(("", EMPTY), ("# only a comment\n", EMPTY), ("---\nnull\n", EMPTY)),
    (COMMAND + 'setup: !!python/object/apply:os.system ["id"]\n',
     "2: setup: tags (`!!python/object/apply:os.system`) are not allowed; write a plain value"),
    (COMMAND + "setup: !x y\n", "2: setup: tags (`!x`) are not allowed; write a plain value"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "2: b[0]: aliases (`*a`) are not allowed; write the value out"),
    ("command: ls\n\ntpu:\n  zone: us-central1\n  spot: true\n\n  zone: us-east1\n",
     "7: tpu.zone: duplicate key, first set on line 4; keep one of the two"),
    ("command: ls\ntpu:\n\tzone: us-central1\n", "3: a tab in the indentation; YAML needs spaces"),
    (b"\xef\xbb\xbf" + COMMAND.encode() + b"x: !x y", "2: x: tags (`!x`) are not allowed; write a plain value"),
    (COMMAND.encode("utf-16"), "1: the file is UTF-16 or binary; save it as UTF-8"),
    (COMMAND.encode("utf-16-be"), "1: the file is UTF-16 or binary; save it as UTF-8"),
    (b"command: ls\nname: \xe9t\xe9\n", "1: the file is not UTF-8 (byte 0xe9 in line 2); save it as UTF-8"),
    ("command: ls\nname: a\0b\n", "2: a NUL byte does not belong in a text file; delete it"),
    ("command: ls\r\nname: a\x1b]0;x\r\n", "2: the control character U+001B does not belong in a text file; delete it"),
    ("#" * (1024 * 1024 + 1), "1: the file has more than 1 MiB; a job file is a page of text: is this the right one?"),
    ("- command: ls\n", "1: a job file is a mapping (`key: value` lines), not a list; remove the leading `-`"),
    ("hello\n", "1: a job file is a mapping (`key: value` lines), not a single value"),
    (COMMAND + "---\ncommand: pwd\n", "2: a second document starts here; write one job per file"),
    ("command: ls\nname: a: b\n",
     "2: not valid YAML: unexpected `:`; put a value that holds `: ` in quotes, or look at the line above"),
    ("name: a\ncommand: 'ls\n\n", "2: not valid YAML: a quote opened here is never closed"),
    ("name: a\nartifacts: [x, y\n\n", "2: not valid YAML: a bracket or brace is not closed, or a comma is missing"),
    ('name: "\\UFFFFFFFF"\n', "1: the file is not readable YAML; look for unusual characters and escapes"),
    ("[" * 1000 + ": x", "1: a job file is a mapping (`key: value` lines), not a list; remove the leading `-`"),
    ("? " * 1000, "1: more than 20000 values, or more than 20 levels: this is no job file"),
    (COMMAND + "? [a]\n: b\n", "2: a key is not a plain word; write `key: value`"),
    (COMMAND + "tpu: {1: a}\n", "2: tpu: the key `1` is not a word; put it in quotes if it is meant"),
])  # fmt: skip
def test_text_that_is_no_job_file_gets_one_line(text: str | bytes, line: str) -> None:
    assert problems(text) == [f"job.yaml:{line}"]


@pytest.mark.parametrize(("value", "line"), [
    *((f"[{text}]", f"`{text.strip(chr(39))}` {NO_PORT}") for text in ("0", "'6006'", "true")),
    *(("tensorboard", f"`tensorboard` {NO_PORT}"), ("[6006, 65536]", f"`65536` {NO_PORT}")),
    ("[1, 2, 1]", "names port 1 twice"),
    (str([*range(1, 18)]), "has 17 ports; a job has at most 16"),
])  # fmt: skip
def test_ports_are_numbers_each_once_and_not_many(value: str, line: str) -> None:
    assert problems(COMMAND + f"ports: {value}\n") == [f"job.yaml:2: ports: {line}"]


@pytest.mark.parametrize(("text", "line"), [
    (COMMAND + "tpu:\n  acclerator: v5e-8\n", "3: tpu.acclerator: unknown key; did you mean `accelerator`?"),
    ("trian:\n  epochs: 1\n", "1: trian: unknown key; did you mean `train`?"),
    (COMMAND + "zone: us-central1\n", "2: zone: does not belong here; did you mean `tpu.zone`?"),
    (COMMAND + "max_hours: 3\n", "2: max_hours: unknown key; did you mean `limits.max_duration`?"),
    (COMMAND + "limits: {max_hours: 3}\n", "2: limits.max_hours: unknown key; did you mean `max_duration`?"),
    (
        COMMAND + "colour: red\n",
        "2: colour: unknown key; known here: name, on, tpu, gke, access, train, command, setup, requirements, "
        "python, env, code, data, artifacts, metrics, ports, tpu_metrics, bucket, allow_egress, copy_while_running, "
        "limits, keep_on_failure, on_preemption, max_restarts, notify, params, matrix, variants, parallel",
    ),
    (COMMAND + "tpu: [v5litepod-8]\n",
     "2: tpu[0]: expected a mapping (indented `key: value` lines), got the text `v5litepod-8`"),
    ("name: nothing-to-do\n",
     "1: nothing to run: add `train:` (the built-in training) or `command:` (any shell command)"),
    (COMMAND + "on: clouds\n", "2: on: must be `tpu` or `gke` or `local`, not the text `clouds`"),
    (COMMAND + "on: local\ndata: {./data: gs://bucket}\n",
     "3: data: is not fetched with `on: local`; fetch it into the job's `code:` yourself, and remove this"),
    *(
        (COMMAND + f"data:\n  {key}: {url}\n", f"3: data.{key}: {why}; write for example `./data: gs://my-bucket/my-data`")
        for key, url, why in (
            *((each, "gs://bucket/x", f"`{each}` is no directory below the job's directory") for each in DIRECTORIES),
            *(("./data", each, f"`{each}` is not a place in Cloud Storage") for each in ("data", "gs://b", "gs://bucket/a//b")),
            ("./data", "gs://bucket/../x", "`gs://bucket/../x` is not a place in Cloud Storage"),
        )
    ),
    (COMMAND + "data: {./data: gs://bucket/a*}\n",
     "2: data../data: `gs://bucket/a*` has the wildcard `*`; name the directory that the objects are in"),
    (COMMAND + "data:\n  ./data: gs://bucket\n  data/: gs://bucket\n",
     "4: data.data/: is the directory `./data` again; write each once"),
    (COMMAND + "on: local\nbucket: gs://bucket/x\n",
     "3: bucket: has no use with `on: local`: the artifacts are on this machine anyway; remove it"),
    ("train:\ncommand: ls\n", "2: command: a job has either `train:` or `command:`, not both; remove one of them"),
    (COMMAND + "tpu:\n  zone:\n    - us-central1\n    - mars-north1\n",
     f"5: tpu.zone[1]: `mars-north1` is not a zone or a known region; {ZONES}"),
    (COMMAND + "tpu: {accelerator: $(id), runtime: x, unlisted: true}\n",
     "2: tpu.accelerator: `$(id)` is not an accelerator type; they look like v5litepod-8, v5p-8 or v6e-8"),
])  # fmt: skip
def test_a_bad_key_and_a_bad_value_at_any_place_get_a_suggestion(text: str, line: str) -> None:
    assert problems(text) == [f"job.yaml:{line}"]


@pytest.mark.parametrize(("accelerator", "advice"), [
    ("v5litepod-7", "nearest: v5litepod-8, v5litepod-4, v5litepod-1"),
    ("v5e-9", "nearest: v5litepod-8, v5litepod-4, v5litepod-16"),
    *((text, "they look like v5litepod-8, v5p-8 or v6e-8") for text in ("tpu", "v99-8", "nvidia-h100")),
    ("8", "nearest: v6e-8, v5p-8, v5litepod-8"),
])  # fmt: skip
def test_an_unknown_accelerator_type_gets_the_nearest(accelerator: str, advice: str) -> None:
    said = f"`{accelerator}` is not a known accelerator type; {advice}; `tpujob offers` lists them"
    assert problems(f"{COMMAND}tpu:\n  accelerator: {accelerator}\n") == [f"job.yaml:3: tpu.accelerator: {said}"]


@pytest.mark.parametrize(("zone", "advice"), [
    ("us-centrall1",
     "`us-centrall1` is not a zone or a known region; nearest: us-central1, us-central1-f, us-central1-c"),
    ("us-central1-z", "`us-central1-z` is not a zone with TPUs; nearest: us-central1-f, us-central1-c, us-central1-b"),
    ("'; rm -rf ~'", f"`; rm -rf ~` is not a zone or a known region; {ZONES}"),
    ("../..", f"`../..` is not a zone or a known region; {ZONES}"),
    ("[]", "is empty; name a zone or region, or leave it out to take any zone that has the type"),
    ("5", "expected a zone, a region or a list of them, such as us-central1-a"),
])  # fmt: skip
def test_a_bad_zone_gets_advice(zone: str, advice: str) -> None:
    assert problems(f"{COMMAND}tpu:\n  zone: {zone}\n") == [f"job.yaml:3: tpu.zone: {advice}"]


@pytest.mark.parametrize(("name", "advice"), [
    ('"$(reboot)"', f"`$(reboot)` {NOT_A_NAME} `reboot`"),
    ("a" * 200, f"`{'a' * 39}…` has 200 characters; at most 40 are allowed; for example `{'a' * 40}`"),
    ("mn\u0456st", f"`mn\u0456st` {NOT_A_NAME} `mnst`"),  # a Cyrillic letter that looks like an i
    ("mnist-", f"`mnist-` {NOT_A_NAME} `mnist`"),
    ("-oProxyCommand=x", f"`-oProxyCommand=x` {NOT_A_NAME} `oproxycommand-x`"),
    ("12", 'expected text, got `12`; write it in quotes: "12"'),
    ("true", 'expected text, got `true`; write it in quotes: "true"'),
    ("", "expected text, got nothing; give it a value, or leave it out"),
])  # fmt: skip
def test_a_bad_name_gets_the_rule_and_a_good_one(name: str, advice: str) -> None:
    assert problems(f"{COMMAND}name: {name}\n") == [f"job.yaml:2: name: {advice}"]


@pytest.mark.parametrize(("duration", "advice"), [
    *((text, f"`{text}` {UNITS}") for text in ("0", "-1", ".inf", ".nan", "soon", "true", "900000", "0:05")),
    *(("1e9", f"`1e+09` {UNITS}"), ("", f"`null` {UNITS}")),
    ("30", "`30` is not a duration: write numbers with units, such as 30m or 30h (6m to 7d)"),
    ("500", "`500` is not a duration: write numbers with units, such as 500m (6m to 7d)"),
    ("12:30:00", "`12:30:00` is not a duration: write numbers with units, such as 12h30m (6m to 7d)"),
    *((text, f"`{text}` is not between 6m and 7d; write for example 2h") for text in ("5m", "8d")),
])  # fmt: skip
def test_a_bad_duration_gets_the_format(duration: str, advice: str) -> None:
    assert problems(f"{COMMAND}limits:\n  max_duration: {duration}\n") == [f"job.yaml:3: limits.max_duration: {advice}"]


@pytest.mark.parametrize(("env", "line"), [
    ("A=B: x", "env.A=B: is not a variable name; use letters, digits and `_`, not a digit first"),
    ("TPU_NAME: x", "env.TPU_NAME: is set by tpujob on every worker; choose another name"),
    ("TPUJOB_RUN: x", "env.TPUJOB_RUN: is set by tpujob on every worker; choose another name"),
    ('A: "x\\ny"', "env.A: has a line break in its value; write the value on one line"),
    ('A: "x\\0y"', "env.A: contains a NUL byte; remove the escape"),
    *(("A: {x: 1}", "env.A: expected text or a number"), ("A: [x]", "env.A: expected text or a number")),
    ("A: '${env:}'", "env.A: has a `${env:` that names no variable; write ${env:NAME}"),
    ("A: '${env:B C}'", "env.A: has a `${env:` that names no variable; write ${env:NAME}"),
])  # fmt: skip
def test_a_bad_variable_gets_the_rule(env: str, line: str) -> None:
    assert problems(f"{COMMAND}env:\n  {env}\n") == [f"job.yaml:3: {line}"]


@pytest.mark.parametrize(("text", "place"), [
    ("env: {TOKEN: hf_abcdefghijklmnopqrstuvwx}", "env.TOKEN"),
    ("env: {WANDB_API_KEY: 0123456789abcdef0123456789abcdef}", "env.WANDB_API_KEY"),
    *(("env: {A: 'x ya29.a0AfH6SMBx'}", "env.A"), ("env: {A: AIzaSyA1234567890abcdefghijklmnopqrstu}", "env.A")),
    ("env: {A: '-----BEGIN RSA PRIVATE KEY-----'}", "env.A"),
    ("setup: git clone https://ghp_0123456789abcdefghij@github.com/x/y", "setup"),
    ("setup: ['true', 'curl -H \"Authorization: Bearer abcdefghijklmnopqrst\" x']", "setup[1]"),
])  # fmt: skip
def test_a_secret_in_the_file_is_refused_and_not_repeated(text: str, place: str) -> None:
    (line,) = problems(COMMAND + text + "\n")
    name = place.removeprefix("env.") if place.startswith("env.") else "TOKEN"
    assert line == (
        f"job.yaml:2: {place}: looks like a secret, and files are shared; "
        f"export it and write `env: {{{name}: ${{env:{name}}}}}`"
    )


@pytest.mark.parametrize(("command", "advice"), [
    ("", "is empty; write what to run, such as `python train.py`"),
    ("'  '", "is empty; write what to run, such as `python train.py`"),
    ("[]", "is empty; write what to run, such as `python train.py`"),
    ("[python, 1]", 'argument 2 of the list is not text; write it in quotes: "1"'),
    ("[python, true]", 'argument 2 of the list is not text; write it in quotes: "true"'),
    ("5", "expected a command as text, or a list of its arguments"),
    ("{a: b}", "expected a command as text, or a list of its arguments"),
    ('"ls\\0-l"', "contains a NUL byte; remove the escape"),
    ("echo ${env:HOME}", "`${env:…}` is read only in `env:`; set a variable there and use it here as $NAME"),
])  # fmt: skip
def test_a_bad_command_gets_the_expected_form(command: str, advice: str) -> None:
    assert problems(f"command: {command}\n") == [f"job.yaml:1: command: {advice}"]


@pytest.mark.parametrize("key", ["code", "train.data_dir"])
@pytest.mark.parametrize("path", ["/", "~", "~/src", "/etc", "C:/src", "'\\\\host\\share'"])
def test_a_directory_is_relative_to_the_file(key: str, path: str) -> None:
    text = f"command: ls\ncode: {path}\n" if key == "code" else f"train:\n  data_dir: {path}\n"
    shown = path.strip("'")
    assert problems(text) == [
        f"job.yaml:2: {key}: `{shown}` is not relative to this file; write a path such as `src` or `../src`"
    ]


@pytest.mark.parametrize("pattern", ["../../etc", "/etc/passwd", "a/../../b", "~/x", "'a\\b'"])
def test_an_artifact_pattern_stays_below_the_job(pattern: str) -> None:
    assert problems(f"{COMMAND}artifacts:\n  - ok/**\n  - {pattern}\n") == [
        f"job.yaml:4: artifacts[1]: `{pattern.strip(chr(39))}` leaves the job's directory; "
        "write a pattern below it, such as `out/*.json`"
    ]


@pytest.mark.parametrize(("setting", "line"), [
    ("epochs: 1e3", "train.epochs: expected a whole number, got `1e3`; write 1000"),
    ("epochs: 1_000", "train.epochs: expected a whole number, got the text `1_000`; write 1000"),
    ("epochs: '8'", "train.epochs: expected a whole number, got the text `8`; write 8, without quotes"),
    ("epochs: 0", "train.epochs: must be at least 1, not `0`"),
    ("epochs: true", "train.epochs: expected a whole number, got `true`"),
    ("eval: yes", "train.eval: expected `true` or `false`, got the text `yes`; write true"),
    ("eval: off", "train.eval: expected `true` or `false`, got the text `off`; write false"),
    ("lr: .nan", "train.lr: must be a finite number, not `.nan`"),
    ("lr: 0", "train.lr: must be greater than 0, not `0`"),
    ("examples: ~", "train.examples: expected a whole number, got the text `~`; write null, or leave it out"),
    ("cores: 9", "train.cores: v5litepod-8 has 8 cores, not 9; write at most 8, or `all`"),
    ("cores: 0", "train.cores: expected `all` or a number of cores from 1 on, not `0`"),
    ("cores: true", "train.cores: expected `all` or a number of cores from 1 on, not `true`"),
    ("dataset: mnits",
     "train.dataset: must be `mnist` or `fashion-mnist` or `synthetic` or `idx`, not the text `mnits`; did you mean "
     "`mnist`?"),
])  # fmt: skip
def test_a_bad_training_setting_gets_advice(setting: str, line: str) -> None:
    assert problems(f"train:\n  {setting}\n") == [f"job.yaml:2: {line}"]


@pytest.mark.parametrize(("setting", "line"), [
    ("dataset: fashion-mnist\n  fallback: sample",
     "job.yaml:3: train.fallback: the sample is of mnist, and there is none of fashion-mnist; write synthetic"),
    ("profile: {steps: 500}", "job.yaml:2: train.profile.steps: must be at most 100, not `500`"),
    ("profile: {start: 0}", "job.yaml:2: train.profile.start: must be at least 1, not `0`"),
    ("profile: {step: 5}", "job.yaml:2: train.profile.step: unknown key; did you mean `steps`?"),
    ("profile: 100", "job.yaml:2: train.profile: expected a mapping (indented `key: value` lines), got `100`"),
    ("profile: {start: 5}\n  entry: mine:main",
     "job.yaml:2: train.profile: is of the built-in training; an `entry:` traces its own steps (docs/reports.md)"),
    ("profile: {start: 5}\n  backend: tpu",
     "job.yaml:2: train.profile: is not available with backend tpu; backend xla traces on the same TPU"),
])  # fmt: skip
def test_what_a_training_cannot_do_is_refused_before_anything_is_billed(setting: str, line: str) -> None:
    assert problems(f"train:\n  {setting}\n") == [line]


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "name: Mnist\n"
        "tpu:\n"
        "  acclerator: v5litepod-8\n"
        "  zone: us-central1-z\n"
        "train:\n"
        "  epochs: many\n"
        "  epochs: 2\n"
        "  eval: !!bool yes\n"
        "limits: {max_duration: 9d}\n"
    )
    assert [line.partition(": ")[2].partition(": ")[0] for line in problems(text)] == [
        "name", "tpu.acclerator", "tpu.zone", "train.epochs", "train.epochs", "train.eval",
        "limits.max_duration",
    ]  # fmt: skip


def test_a_flood_of_mistakes_is_cut_and_counted() -> None:
    lines = problems(COMMAND + "env:\n" + "".join(f"  A{number}: [{number}]\n" for number in range(100)))
    assert len(lines) == mistakes.MAX_REPORTED + 1
    assert lines[-1] == "job.yaml: and 80 more mistakes"


def test_text_from_the_file_cannot_control_a_terminal() -> None:
    (line,) = problems(COMMAND + 'name: "\u202egnp"\n')
    assert "\u202e" not in line


def test_a_newer_type_than_the_table_may_be_asked_for_explicitly() -> None:
    tpu = "tpu: {accelerator: v8-8, zone: mars-north1-a, unlisted: true}\n"
    assert problems(COMMAND + tpu) == [
        "job.yaml:2: tpu.runtime: v8-8 is not in the catalog, so it has no default runtime; name one here"
    ]
    spec = job_spec.load(COMMAND + tpu.replace("{", "{runtime: v2-alpha-tpu8, "), path="job.yaml")
    assert (spec.tpu.accelerator, spec.tpu.runtime_version) == ("v8-8", "v2-alpha-tpu8")


@pytest.mark.parametrize(("text", "line"), [
    ("python: 3.7", 'python: `3.7` is not a version of Python from 3.8 on; write for example "3.12"'),
    ("python: 3", 'python: `3` is not a version of Python from 3.8 on; write for example "3.12"'),
    ("python: 3.12.1", 'python: `3.12.1` is not a version of Python from 3.8 on; write for example "3.12"'),
    ("requirements: numpy",
     "requirements: `numpy` is no requirements file (.txt, .in, .toml); write packages as a list: [numpy]"),
    ("requirements: /home/me/requirements.txt",
     "requirements: `/home/me/requirements.txt` is not relative to this file; write a path such as `src` or `../src`"),
    ("requirements: 7", "requirements: expected a file, such as requirements.txt, or a list of packages"),
    ("requirements: [numpy, 7]", "requirements: package 2 of the list is not text; write for example numpy>=1.26"),
])  # fmt: skip
def test_a_bad_environment_gets_advice(text: str, line: str) -> None:
    assert problems(f"command: x\n{text}\n") == [f"job.yaml:2: {line}"]


def test_a_version_of_python_is_taken_as_it_is_written() -> None:
    assert [job_spec.load(f"command: x\npython: {text}\n", path="j").python for text in ("3.10", "'3.9'")] == [
        "3.10",
        "3.9",
    ]


def test_a_local_training_has_the_python_of_tpujob() -> None:
    (line,) = problems("train: {}\non: local\nrequirements: [numpy]\n")
    assert line.startswith("job.yaml:3: requirements: `train:` with `on: local` runs in the Python of tpujob")
    assert problems("train: {backend: tpu}\npython: 3.10\n") == [
        "job.yaml:2: python: `train:` needs Python 3.11 or newer"
    ]


@pytest.mark.parametrize(("metrics", "line"), [
    ("{loss: 'loss (', acc: 'acc (.+)'}", "job.yaml:2: metrics.loss: `loss (` is no regular expression: missing )"),
    ("{loss: loss}", "job.yaml:2: metrics.loss: `loss` has 0 groups; write exactly one, around the number"),
    ("{loss: '(l)(.)'}", "job.yaml:2: metrics.loss: `(l)(.)` has 2 groups; write exactly one, around the number"),
    ("{step: 'step (.)'}", "job.yaml:2: metrics: finds only the step; name a metric too"),
    ("{'': '(.)'}", "job.yaml:2: metrics.: is no name of a metric"),
    (f"{{loss: '({'x' * 500})'}}", "job.yaml:2: metrics.loss: a pattern of 502 characters; at most 500"),
    ("{loss: 3}", "job.yaml:2: metrics.loss: "),
    (str({f"m{n}": "(.)" for n in range(21)}), "job.yaml:2: metrics: 21 patterns; at most 20"),
])  # fmt: skip
def test_a_pattern_that_finds_no_figure_is_explained(metrics: str, line: str) -> None:
    [message] = problems(f"{COMMAND}metrics: {metrics}\n")
    assert message.startswith(line)
