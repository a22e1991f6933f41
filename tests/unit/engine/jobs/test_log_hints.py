"""What the end of a failed job's log says about the cause: only what is certain, with what to write."""

from pathlib import Path

import pytest

from orchestrator.core.lease.run_and_attempt import RunRecord
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.engine.jobs.log_hints import NO_CUDA, NO_KEYBOARD, hint

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
    files += [".git/config", "code/cache/deep/c"]
    for name in files:
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "top" / ".gitignore").write_text("far/\ndata\n*.ckpt\ncode/out/*\nbig\nhidden.py\n*.bin\n")
    (tmp_path / "top" / "code" / ".tpujobignore").write_text("cache/\n")
    for name in ("shared", "far"):
        (tmp_path / "top" / "code" / name).symlink_to(f"../{name}")
    return tmp_path / "top"


def ships(line: str) -> str:
    return f"; the line `!{line}` in .tpujobignore ships it"


IGNORED = f"`data/wiki/train.txt` exists here and was left out by ../.gitignore:2{ships('data/wiki/')}"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/wiki/train.txt'", IGNORED),
        ("FileNotFoundError: [Errno 2] No such file or directory: './data/wiki/train.txt'", IGNORED.replace("`d", "`./d")),
        ("cat: data/wiki/train.txt: No such file or directory", IGNORED),
        ("OSError: data/wiki/train.txt not found.", IGNORED),
        ("unable to open file: name = 'data/wiki/train.txt', errno = 2", IGNORED),
        ("NotFoundError: data/wiki/train.txt; No such file or directory", IGNORED),
        (f"FileNotFoundError: Unable to find '{WORK}/data/wiki/train.txt'", IGNORED.replace("`d", f"`{WORK}/d")),
        ("No such file: 'a.ckpt'", f"`a.ckpt` exists here and was left out by ../.gitignore:3{ships('a.ckpt')}"),
        ("bash: out: No such file or directory", f"`out/x` exists here and was left out by ../.gitignore:4{ships('out/x')}"),
        ("Couldn't find any data file at out/", f"`out/x` exists here and was left out by ../.gitignore:4{ships('out/x')}"),
        ("No such file: 'cache/deep/c'", f"`cache/deep/c` exists here and was left out by .tpujobignore:1{ships('cache/deep/')}"),
        (
            f'  File "{WORK}/sub/main.py", line 3, in <module>\nFileNotFoundError: No such file: \'big/b.bin\'',
            f"`big/b.bin` exists here and was left out by ../.gitignore:5{ships('sub/big/b.bin')}",
        ),
        ("No such file: '../shared/s'", "`../shared/s` exists here, outside of `code:`, and was not shipped; copy it into {top}/code"),
        ("No such file: 'far/f'", "`far/f` exists here, outside of `code:`, and was not shipped; copy it into {top}/code"),
        (
            "No such file: '{top}/code/sub/main.py'",
            "`{top}/code/sub/main.py` is a path of this machine; on a worker it is `sub/main.py`, in the directory where the job "
            "starts",
        ),
        ("ModuleNotFoundError: No module named 'cv2'", "`cv2` is not installed on the workers; name `opencv-python-headless` in `requirements:`"),
        ("No module named 'wandb.sdk'", "`wandb` is not installed on the workers; name `wandb` in `requirements:`"),
        ("No module named mine", "`src/mine` is shipped; `env: {{PYTHONPATH: src}}` lets Python find it"),
        ("No module named 'beside'", "`../beside.py` exists here, outside of `code:`, and was not shipped; copy it into {top}/code"),
        ("No module named 'hidden'", f"`hidden.py` exists here and was left out by ../.gitignore:6{ships('hidden.py')}"),
        ("AssertionError: Torch not compiled with CUDA enabled", NO_CUDA),
        ("RuntimeError: No CUDA GPUs are available", NO_CUDA),
        ("EOFError: EOF when reading a line", NO_KEYBOARD),
        # Of these nothing is known: they are shipped, are not here, belong to the system, or nobody missed them.
        ("No such file: 'sub/main.py'", None),
        ("No such file: 'shared/s'", None),
        ("No such file: 'data/wiki/other'", None),
        ("No such file: '/usr/bin/env'", None),
        ("No module named '_ctypes'", None),
        ("training on data/wiki/train.txt", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_end_of_a_log_says_why(tmp_path: Path, top: Path, log: str, expected: str | None) -> None:
    assert told(tmp_path, log.replace("{top}", str(top))) == (
        expected and expected.replace("{top}", str(top)).replace("{{", "{").replace("}}", "}")
    )


def test_what_several_lines_and_workers_say_is_said_once_and_the_rest_is_bounded(tmp_path: Path) -> None:
    files = [f"No such file: '{name}'" for name in ("data/wiki/train.txt", "a.ckpt", "out/x", "cache/deep/c")]
    found = told(tmp_path, "\n".join(files), "\n".join(files))
    assert found is not None and found.count("exists here") == 3 and found.startswith("`cache/deep/c`"), (
        "the last line first"
    )


def test_a_job_that_moves_elsewhere_is_followed_and_a_local_one_may_have_cuda(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        "cat: big/b.bin: No such file\nFound no NVIDIA driver",
        cloud="local",
        command="cd sub && cat big/b.bin",
    )
    assert found is not None and "`!sub/big/b.bin`" in found and NO_CUDA not in found
