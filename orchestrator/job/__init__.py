"""The job file, of one job or of a sweep: its models, rules (`rules/`), mistakes with line numbers, JSON Schema.

Pure: text or values in, a JobSpec or a JobSpecError out. `job_spec` is the model; importing it costs pydantic and
yaml. What looks at the disk, such as whether `code:` exists, belongs to the client.
"""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.job import job_spec as job_spec
    from orchestrator.job import overrides as overrides
    from orchestrator.job import sweep as sweep
    from orchestrator.job import tpu_keys as tpu_keys
else:
    __getattr__ = modules_of(__name__)
