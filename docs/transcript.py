"""Write the transcript in README.md and the picture docs/report.png, both of one real run of jobs/mnist.yaml.

Run `make transcript` after a change of what a run prints, of what it leaves, or of what its page shows. It needs torch,
Chromium and a minute on a quiet machine. A test holds the form of the transcript against that of a shorter run of the same job.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "report.png"
BEGIN, END = "<!-- transcript: written by docs/transcript.py -->", "<!-- end of transcript -->"
RUN = ("run", "jobs/mnist.yaml")
OWN_SETTINGS = ("TPUJOB_", "GOOGLE_", "CLOUDSDK_", "XDG_", "CI", "RUNNER_")  # a stranger at a terminal has none
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, SCALE, COLORS = 1120, 2, 64  # pixels of the page, of the picture for each of them, and colors of the picture

# What differs between two runs of the same job.
IDS = re.compile(
    r"tpujob-[a-z0-9-]{1,20}-[0-9a-z]{10}|(?<=^run {6})\w+|(?<=runs/mnist-)\w+|(?<=tpujob show )\w+", re.MULTILINE
)
KEPT = r"\d+ artifacts?|cores? emulated as \d+|\d+ worker"
TIMES = r"\d{4}-\d\d-\d\d |\d\d:\d\d:\d\dZ|(?:[\d.]+ (?:d|h|m|s)\b ?)+"
NUMBERS = re.compile(rf"(?P<kept>{KEPT})|{TIMES}|[\d.,]*\d(?: [KMG]?B\b)?")
WHY_NOT = re.compile(r"(?<=cannot be downloaded: ).*")
PROGRESS = re.compile(r"^(worker0 \| epoch \d+/\d+  step|train   ) ")  # a line for so many seconds
SPANS = re.compile(r"waiting for the VM|job|train|compile|import|releasing")  # others may be too short to be listed


def shape(transcript: str) -> list[str]:
    """Return the lines without what differs from run to run: numbers, ids, times and the lines that only show progress."""
    shaped = []
    for line in IDS.sub("ID", transcript).splitlines():
        if line.startswith("spans "):
            shaped.append(" ".join(["spans", *SPANS.findall(line)]))
        elif not PROGRESS.match(line):
            shaped.append(NUMBERS.sub(lambda found: found["kept"] or "#", WHY_NOT.sub("…", line)))
    return [line for line, _ in groupby(shaped)]


def transcript_of(readme: str) -> str:
    """Return what the README says that the run prints, without the command."""
    _, _, rest = readme.partition(BEGIN)
    block, _, _ = rest.partition(END)
    return block.partition("$ tpujob " + " ".join(RUN) + "\n")[2].partition("```")[0]


def run_of(transcript: str) -> str:
    """Return the id of the run."""
    return re.findall(r"^run {6}(\w+) ", transcript, re.MULTILINE)[0]


def with_transcript(readme: str, transcript: str) -> str:
    """Return the README with this transcript, and with what it was made on."""
    where = f"The output, on a machine with {os.cpu_count()} cores"
    if WHY_NOT.search(transcript):
        where += " and no network, hence with the sample of MNIST that comes with tpujob"
    block = f"{where}:\n\n```\n$ tpujob {' '.join(RUN)}\n{transcript}```\n"
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{block}{END}{after}"


def play(directory: Path) -> str:
    """Run the job as a stranger does, with a home of its own in `directory`; return what it prints."""
    (directory / "home").mkdir()
    (directory / "jobs").mkdir()
    shutil.copy(ROOT / RUN[1], directory / "jobs")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_SETTINGS)}
    environ = kept | {"HOME": str(directory / "home"), "PYTHONPATH": str(ROOT)}

    def tpujob(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *words],
            cwd=directory,
            env=environ,
            check=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout

    try:
        return tpujob(*RUN)
    finally:
        tpujob("emulator", "stop", "--yes")


def picture(report: Path, run: str) -> bytes:
    """Return a PNG of the top of the page down to the end of its first curves; it names the run."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)))
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium refuses to run as root with it
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 1200}, device_scale_factor=SCALE, color_scheme="light"
        )
        page.goto(report.as_uri())
        page.locator(".plot canvas").first.wait_for()
        box = page.locator(".plot").first.bounding_box()
        assert box is not None, "the page shows no curve"
        bottom = box["y"] + box["height"] + 4
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom}, full_page=True)
        browser.close()
    said = PngInfo()
    said.add_text("Run", run)
    small = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    out = io.BytesIO()
    small.save(out, "PNG", optimize=True, pnginfo=said)
    return out.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tpujob-transcript-") as name:
        place = Path(name)
        printed = play(place)
        (page,) = place.glob("runs/*/report.html")
        PICTURE.write_bytes(picture(page, run_of(printed)))
        README.write_text(with_transcript(README.read_text(encoding="utf-8"), printed), encoding="utf-8")
