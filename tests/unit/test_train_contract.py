"""The two sides of `train.json` are written apart on purpose; this holds them together."""

from dataclasses import MISSING, fields

from orchestrator.core.jobfile import keys, train_keys
from orchestrator.core.jobfile.json_schema import Section
from orchestrator.vm import tpu_metrics
from payload import artifacts, config

ABSENT = object()


def test_the_payload_knows_the_file_that_the_sampler_of_tpujob_writes() -> None:
    assert artifacts.TPU_METRICS == tpu_metrics.NAME


def sides(model: type[Section], dataclass: type) -> tuple[dict[str, object], dict[str, object]]:
    """Key → default on the client and in the payload; sections are compared by themselves."""
    client = {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}
    payload = {field.name: field.default if field.default is not MISSING else ABSENT for field in fields(dataclass)}
    for side in (client, payload):
        side.pop("emulated", None)
    return client, payload


def test_the_client_writes_the_keys_and_defaults_that_the_payload_reads() -> None:
    client, payload = sides(train_keys.TrainSection, config.Config)
    assert client == payload


def test_so_it_is_for_the_emulated_section() -> None:
    client, payload = sides(train_keys.EmulatedSection, config.EmulatedConfig)
    assert client == payload


def test_a_whole_default_section_is_accepted_by_the_payload() -> None:
    written = keys.load("train:\n", path="x.yaml").train
    assert written is not None
    parsed = config.parse(written.model_dump(mode="json"))
    assert (parsed.model, parsed.batch_size, parsed.cores) == ("mnist_cnn", 128, "all")
