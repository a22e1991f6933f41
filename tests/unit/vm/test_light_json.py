"""JSON on a worker: as the `json` module has it, by its C code, and by the module where the C code is another one."""

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.vm import light_json

OTHER_INTERPRETERS = {
    "without the C code": None,
    "other arguments": SimpleNamespace(
        encode_basestring_ascii=json.encoder.encode_basestring_ascii,
        make_scanner=lambda: None,
        make_encoder=lambda: None,
    ),
    "other results": SimpleNamespace(
        encode_basestring_ascii=json.encoder.encode_basestring_ascii,
        make_scanner=lambda _context: lambda _text, _at: ({}, 0),
        make_encoder=lambda *_arguments: lambda _value, _level: ("{}",),
    ),
}


def _loaded(_json: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "_json", _json)
    spec = importlib.util.spec_from_file_location("light_json_elsewhere", light_json.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["this interpreter", *OTHER_INTERPRETERS])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if request.param == "this interpreter":
        return light_json
    return _loaded(OTHER_INTERPRETERS[request.param], monkeypatch)


@pytest.mark.parametrize(
    "value", [{"a": [1, 2.5, None, True], "b": {"c": "é\ud800\n"}}, [], "x", 7, float("inf"), {"": {}}]
)
def test_a_value_has_the_form_of_the_json_module(module: ModuleType, value: object) -> None:
    text = module.dumps(value)
    assert text == json.dumps(value)
    assert module.loads(text) == module.loads(text.encode()) == module.loads(f" {text}\n") == value


@pytest.mark.parametrize("text", ["", "{", "{} {}", "[1,]", "nul", "'a'", b"\xff"])
def test_what_is_no_json_is_a_value_error(module: ModuleType, text: str | bytes) -> None:
    with pytest.raises(ValueError):
        module.loads(text)


def test_what_json_cannot_express_is_an_error(module: ModuleType) -> None:
    with pytest.raises(TypeError):
        module.dumps({"place": {1, 2}})
