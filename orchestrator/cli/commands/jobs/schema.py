"""`tpujob schema`: the JSON Schema of the job file."""

from orchestrator.api import jobs
from orchestrator.cli.console.output import emit_json


def schema() -> None:
    """Print the JSON Schema of the job file, with which editors complete keys and underline mistakes.

    Save it beside the job file (`tpujob schema > job.schema.json`) and begin the job file with the line
    `# yaml-language-server: $schema=job.schema.json`. Editors with yaml-language-server read it (VS Code: the YAML extension).
    """
    emit_json(jobs.job.schema())
