"""Reads a section of the settings file that a job file has, too: the same model, rules and messages."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from orchestrator.core.jobfile import yaml_source
from orchestrator.core.jobfile.json_schema import Section
from orchestrator.core.jobfile.mistakes import explain, messages
from orchestrator.core.jobfile.yaml_source import Mistake, Path
from orchestrator.errors import JobSpecError

S = TypeVar("S", bound=Section)
Problems = Callable[[Mapping[str, Any]], Iterable[tuple[Path, str]]]


def read_section(text: str, file: str, name: str, model: type[S], known: Iterable[str], problems: Problems) -> S:
    """Return `model` with the section of this name, its only field, which the text has.

    `known`: the keys of the section. `problems`: what is wrong with its values together. Raises JobSpecError.
    """
    source = yaml_source.read(text)
    value = source.data.get(name)
    found: S | None = None
    try:
        found = model.model_validate({name: {} if value is None else value})
        mistakes = [Mistake(source.line(path), path, why) for path, why in problems(value or {})]
    except ValidationError as error:
        mistakes = list(explain(error, source, {(name,): list(known)}))
    mistakes += [mistake for mistake in source.mistakes if mistake.path[:1] == (name,)]
    if mistakes or found is None:
        raise JobSpecError(messages(file, source, mistakes))
    return found
