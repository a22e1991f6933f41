"""`tpujob init`: a job file for a script of this directory, or an example job."""

from pathlib import Path
from typing import Annotated

from orchestrator.api.jobs import new_job_file
from orchestrator.cli.console.output import console, emit
from orchestrator.cli.options import Argument, Option
from orchestrator.errors import UserError


def init(
    script: Annotated[
        str | None,
        Argument(help="The script; without it, the only one of this directory. With --example, the example."),
    ] = None,
    directory: Annotated[
        Path | None, Argument(metavar="DIR", help="With --example: the directory to copy it to, jobs by default.")
    ] = None,
    example: Annotated[
        bool, Option("--example", help="Copy an example job with the files that it names; without a name, list them.")
    ] = False,
) -> None:
    """Write a commented job file for a script of this directory. It never overwrites a file.

    The file has what runs the script, its requirements.txt or pyproject.toml, and comments for the keys that people change
    first.
    """
    if example:
        _copy_example(script, directory or Path("jobs"))
        return
    if directory is not None:
        raise UserError(
            f"`init` writes a file for one script, and {directory} is a second argument",
            hint=f"`tpujob init --example {script} {directory}` copies an example",
        )
    if script in new_job_file.find_all() and not Path(script).exists():
        raise UserError(f"there is no file {script}", hint=f"`tpujob init --example {script}` copies the example")
    written = new_job_file.write(Path(script) if script is not None else None)
    emit(str(written.path))
    if not written.ignores:
        text = (
            "there is no .gitignore: everything in this directory is shipped; it (or .tpujobignore) names what is not"
        )
        console().notice("note", text)
    console().notice("next", f"tpujob plan {written.path}, then tpujob run {written.path}")


def _copy_example(name: str | None, directory: Path) -> None:
    if name is None:
        for each in new_job_file.find_all().values():
            emit(f"{each.name}\t{each.description}")
        return
    chosen = new_job_file.find(name)
    copied = new_job_file.copy(chosen, directory)
    for path in copied:
        emit(str(path))
    console().notice("next", f"tpujob run {copied[0]}")
