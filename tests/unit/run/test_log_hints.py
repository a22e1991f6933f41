"""What the end of a failed job's log says about the cause: only what is certain, with what to write."""

from pathlib import Path

import pytest

from orchestrator.promise.lease.run_and_attempt import RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.run.finish import LEND, NO_CUDA, NO_KEYBOARD, ONE_MACHINE, hint

WORK = "/home/me/tpujob/runs/7q2m4x1pzt-1/work"


def told(tmp_path: Path, *logs: str, cloud: str = "emulated", command: str = "python train.py") -> str | None:
    """Return the hint for these logs of workers that failed."""
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    for worker, log in enumerate(logs):
        (directory / "logs" / f"worker{worker}.log").write_text(log)
    spec = RunSpec.of({"command": command, "code": "code"})
    run = RunRecord("7q2m4x1pzt", "job", str(tmp_path / "top" / "job.yaml"), cloud, 0.0, str(directory), spec)
    return hint(run, range(len(logs)), None)


@pytest.fixture(autouse=True)
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose code is one of its directories."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = ["code/data/wiki/train.txt", "code/a.ckpt", "code/out/x", "code/lib/pkg.py", "code/sub/main.py"]
    files += ["code/sub/big/b.bin", "code/src/mine/__init__.py", "code/hidden.py", "shared/s", "beside.py", "far/f"]
    files += [".git/config", "code/cache/deep/c", "code/.env", "code/wandb/run.log", "wandb/__init__.py", "token.ppk"]
    files += ["code/pair/train.bin", "code/pair/meta.bin"]
    for name in files:
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "top" / "code" / "pyproject.toml").write_text('[project]\nname = "My_Pkg"\n')
    (tmp_path / "top" / ".gitignore").write_text(
        "far/\ndata\n*.ckpt\ncode/out/*\nbig\nhidden.py\n*.bin\n.env\nkey.json\n"
    )
    (tmp_path / "top" / "code" / "sub" / "key.json").write_text('{"type": "service_account"}')
    (tmp_path / "top" / "code" / ".tpujobignore").write_text("cache/\n")
    for name in ("shared", "far"):
        (tmp_path / "top" / "code" / name).symlink_to(f"../{name}")
    return tmp_path / "top"


def ignored(said: str, rule: str, line: str) -> str:
    return f"`{said}` exists here and was left out by {rule}; the line `!{line}` in .tpujobignore ships it"


DATA, DATA_RULE = "data/wiki/train.txt", ("../.gitignore:2", "data/wiki/")
OUT = ignored("out/x", "../.gitignore:4", "out/x")
OUTSIDE = "exists here, outside of `code:`, and was not shipped; copy it into TOP/code"
ABSENT = "is not installed on the workers; name"


@pytest.mark.parametrize(("log", "expected"), [
    (f"FileNotFoundError: [Errno 2] No such file or directory: './{DATA}'", ignored(f"./{DATA}", *DATA_RULE)),
    (f"cat: {DATA}: No such file or directory", ignored(DATA, *DATA_RULE)),
    (f"OSError: {DATA} not found.", ignored(DATA, *DATA_RULE)),
    (f"unable to open file: name = '{DATA}', errno = 2", ignored(DATA, *DATA_RULE)),
    (f"NotFoundError: {DATA}; No such file or directory", ignored(DATA, *DATA_RULE)),
    (f"FileNotFoundError: Unable to find '{WORK}/{DATA}'", ignored(DATA, *DATA_RULE)),
    ("No such file: 'a.ckpt'", ignored("a.ckpt", "../.gitignore:3", "a.ckpt")),
    *(("bash: out: No such file or directory", OUT), ("Couldn't find any data file at out/", OUT)),
    ("No such file: 'pair/train.bin'", ignored("pair/train.bin", "../.gitignore:7", "pair/*")),
    ("No such file: 'cache/deep/c'", ignored("cache/deep/c", ".tpujobignore:1", "cache/deep/")),
    (f'File "{WORK}/sub/m.py", line 3\nNo such file: "big/b.bin"',
     ignored("big/b.bin", "../.gitignore:5", "sub/big/b.bin")),
    *(("No such file: '../shared/s'", f"`../shared/s` {OUTSIDE}"), ("No such file: 'far/f'", f"`far/f` {OUTSIDE}")),
    ("ModuleNotFoundError: No module named 'cv2'", f"`cv2` {ABSENT} `opencv-python-headless` in `requirements:`"),
    ("No module named 'torch'", f"`torch` {ABSENT} `torch` in `requirements:`{LEND}"),
    ("No module named 'jax'", f"`jax` {ABSENT} `jax[tpu]` in `requirements:`"),
    ("No module named 'wandb'", f"`wandb` {ABSENT} `wandb` in `requirements:`"),
    ("No module named 'google.cloud.storage'", f"`google.cloud` {ABSENT} `google-cloud-storage` in `requirements:`"),
    *(
        (f"No package metadata was found for {name}", f"`{name}` {ABSENT} `{gives}` in `requirements:`")
        for name, gives in (("my.pkg", "."), ("x", "x"))
    ),
    ("RuntimeError: The server socket has failed to bind. errno: 98 - Address already in use", ONE_MACHINE),
    ("ImportError: libcuda.so.1: cannot open shared object file", NO_CUDA),
    ("No module named 'mine'",
     "`mine` was shipped, but is not beside the script: `--env PYTHONPATH=src` lets Python find it"),
    ("No module named 'hidden'", ignored("hidden.py", "../.gitignore:6", "hidden.py")),
    *(("AssertionError: Torch not compiled with CUDA enabled", NO_CUDA), ("No CUDA GPUs are available", NO_CUDA)),
    ("EOFError: EOF when reading a line", NO_KEYBOARD),
    # Of these nothing is known: they are shipped, are not here, belong to the system, or are not missed.
    *(
        (f"No such file: '{path}'", None)
        for path in ("sub/main.py", "shared/s", "data/wiki/other", "/usr/bin/env", "..")
    ),
    *((f"No such file: '{path}'", None) for path in ("/", "/etc", "x" * 900, "a\0b")),
    *((f"No such file: '{path}'", None) for path in (".env", "sub/key.json", "../token.ppk", "/var/lib/dpkg/status")),
    *((f"No module named '{name}'", None) for name in ("_ctypes", "torch._six", "mine.part", "wandb.sdk")),
    ("W tensorflow: Could not load dynamic library 'libcuda.so.1'; dlerror: libcuda.so.1: cannot open", None),
    *((f"training on {DATA}", None), ("", None)),
])  # fmt: skip
def test_the_end_of_a_log_says_why(tmp_path: Path, top: Path, log: str, expected: str | None) -> None:
    assert told(tmp_path, log.replace("TOP", str(top))) == (expected and expected.replace("TOP", str(top)))


def test_what_several_lines_and_workers_say_is_said_once_and_the_rest_is_bounded(tmp_path: Path) -> None:
    log = "".join(f"No such file: '{name}'\n" for name in (DATA, "a.ckpt", "out/x", "cache/deep/c"))
    found = told(tmp_path, log, log)
    assert found is not None and found.count("exists here") == 3 and found.startswith("`cache/deep/c`"), (
        "the last line first"
    )


def test_a_job_that_moves_elsewhere_is_followed_and_a_local_one_may_have_cuda(tmp_path: Path) -> None:
    log = "cat: big/b.bin: No such file\nFound no NVIDIA driver"
    found = told(tmp_path, log, cloud="local", command="cd sub && cat big/b.bin")
    assert found is not None and "`!sub/big/b.bin`" in found and NO_CUDA not in found
