"""Errors of Google's APIs, status by status: what each becomes, and what is no word of the API at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.auth import exceptions as auth

from orchestrator import errors
from orchestrator.places.google import error_translation
from orchestrator.places.google.error_translation import NotFound, auth_error, http_error, operation_error

HOST = "tpu.googleapis.com"


@pytest.mark.parametrize(("code", "kind"), [
    (1, errors.Vanished), (2, errors.CloudUnavailable), (3, errors.BadRequest), (4, errors.CloudUnavailable), (5, NotFound),
    (6, errors.AlreadyExists), (7, errors.AuthError), (8, errors.CapacityError), (9, errors.WrongState),
    (10, errors.WrongState), (11, errors.BadRequest), (12, errors.UnexpectedReply), (13, errors.CloudUnavailable),
    (14, errors.CloudUnavailable), (15, errors.CloudUnavailable), (16, errors.AuthError),
    (0, errors.UnexpectedReply), (17, errors.UnexpectedReply), ("5", errors.UnexpectedReply), (None, errors.UnexpectedReply),
])  # fmt: skip
def test_an_operation_that_failed_has_the_error_of_its_code(code: Any, kind: type[errors.CloudError]) -> None:
    assert type(operation_error({"code": code, "message": "words"})) is kind


@pytest.mark.parametrize(("http", "words", "kind"), [
    (400, "x", errors.BadRequest), (401, "x", errors.AuthError), (403, "x", errors.AuthError),
    (408, "x", errors.CloudUnavailable), (409, "x", errors.WrongState), (409, "it already exists", errors.AlreadyExists),
    (400, "it already exists", errors.BadRequest), (412, "x", errors.WrongState), (429, "x", errors.CloudUnavailable),
    (500, "x", errors.CloudUnavailable), (501, "x", errors.UnexpectedReply), (502, "x", errors.CloudUnavailable),
    (404, "x", errors.UnexpectedReply), (418, "x", errors.UnexpectedReply),
])  # fmt: skip
def test_an_error_without_a_status_has_that_of_its_http_code(
    http: int, words: str, kind: type[errors.CloudError]
) -> None:
    for body in ({"error": {"message": words}}, [{"error": {"message": words}}, {}]):
        error = http_error(http, json.dumps(body), host=HOST)
        assert type(error) is kind and words in error.message
        assert (error.scope == "project") is (http == 401)


@pytest.mark.parametrize(("http", "body", "kind", "words"), [
    (399, "x", errors.UnexpectedReply, "a redirection, which is not followed"),
    (400, "<html><title>Sign in</title>", errors.UnexpectedReply, "Sign in"),
    (400, "", errors.UnexpectedReply, "an empty reply"),
    (404, "no json", errors.UnexpectedReply, "no json"), (408, "x", errors.CloudUnavailable, "x"),
    (429, "x", errors.CloudUnavailable, "x"), (500, "x" * 99, errors.CloudUnavailable, " " + "x" * 80),
])  # fmt: skip
def test_a_reply_that_is_not_of_the_api_is_shown(
    http: int, body: str, kind: type[errors.CloudError], words: str
) -> None:
    error = http_error(http, body, host=HOST)
    assert type(error) is kind and error.message.endswith(words) and f"{HOST} answered {http}" in error.message


def test_an_error_without_a_message_names_its_status() -> None:
    said = "the API answered {} UNIMPLEMENTED without a message"
    assert operation_error({"code": 12}).message == said.format("an error")
    assert http_error(501, '{"error": {}}', host=HOST).message == said.format(501)


def test_a_long_reply_is_cut() -> None:
    body = json.dumps({"error": {"status": "NOT_FOUND", "message": "m" * 5000}})
    error = http_error(400, body, host=HOST)
    assert error.details == body[: error_translation.MAX_DETAIL_CHARS] and error.message.endswith("…")
    exact = operation_error({"code": 3, "message": "m" * error_translation.MAX_MESSAGE_CHARS})
    assert exact.message == "m" * error_translation.MAX_MESSAGE_CHARS
    with pytest.raises(errors.UnexpectedReply, match="not JSON: an empty reply"):
        error_translation.json_object(" ", HOST)


@pytest.mark.parametrize(("error", "kind", "words"), [
    (auth.TransportError("no route"), errors.CloudUnavailable, "sign-in server cannot be reached: no route"),
    (auth.DefaultCredentialsError("none found"), errors.AuthError, "no usable Google credentials: none found"),
    (auth.RefreshError("invalid_grant", {"error_subtype": "invalid_rapt"}), errors.AuthError, "sign in again"),
    (auth.RefreshError("Reauthentication is needed"), errors.AuthError, "sign in again"),
    (auth.RefreshError("revoked", "and more"), errors.AuthError, "did not renew your credentials: revoked"),
    (auth.GoogleAuthError("odd", retryable=True), errors.CloudUnavailable, "sign-in server"),
    (auth.GoogleAuthError("odd"), errors.AuthError, "credentials cannot be used: odd"),
])  # fmt: skip
def test_a_login_that_fails_says_why(error: Exception, kind: type[errors.CloudError], words: str) -> None:
    found = auth_error(error)
    assert type(found) is kind and words in found.message and "and more" not in found.message
