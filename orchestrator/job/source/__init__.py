"""Texts that a job comes from: YAML with its lines, commands, parameters, lines of a requirements file. Pure."""

from typing import TYPE_CHECKING

from orchestrator.system.lazy import modules_of

if TYPE_CHECKING:
    from orchestrator.job.source import yaml_source as yaml_source
else:
    __getattr__ = modules_of(__name__)
