"""What the translation of errors adds to the table of literal replies (tests/contract/clouds/test_literal_replies.py)."""

import json

import pytest

from orchestrator.errors import AuthError, CloudError, CloudUnavailable, QuotaError, UnexpectedReply
from orchestrator.places.google import error_translation

HOST = "tpu.googleapis.com"


def test_a_used_up_quota_is_named_even_where_the_message_does_not() -> None:
    violated = "Quota 'TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in zone europe-west4-a"
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"description": violated}]}
    body = {"error": {"code": 429, "message": "Exhausted.", "status": "RESOURCE_EXHAUSTED", "details": [detail]}}
    error = error_translation.http_error(429, json.dumps(body), host=HOST)
    assert type(error) is QuotaError
    assert error.message == violated


def test_a_delay_that_the_api_asks_for_is_kept() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    body = json.dumps({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE", "details": [detail]}})
    typed = error_translation.http_error(503, body, host=HOST, retry_after="9")
    header = error_translation.http_error(503, "<html>", host=HOST, retry_after="9")
    date = error_translation.http_error(503, "<html>", host=HOST, retry_after="Wed, 21 Oct 2026 07:28:00 GMT")
    delays = [error.retry_after_s for error in (typed, header, date) if isinstance(error, CloudUnavailable)]
    assert delays == [3.5, 9.0, None]


NOT_THE_API = [
    (404, "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>", UnexpectedReply),
    (404, '{"error":{"code":404,"message":"no status"}}', UnexpectedReply),
    (404, '{"error":{"code":404,"message":"Not Found","status":"NOT_FO', UnexpectedReply),
    *((404, '{"error":"invalid_grant"}', UnexpectedReply), (404, "", UnexpectedReply), (404, "[]", UnexpectedReply)),
    (403, '{"error":{"code":403,"message":"gone?","status":"NOT_FOUND"}}', UnexpectedReply),
    *((403, "<html><title>Access denied by proxy</title></html>", UnexpectedReply), (302, "", UnexpectedReply)),
    *((418, "teapot", UnexpectedReply), (401, "<html>", AuthError)),
    (429, "<html><title>Too many</title></html>", CloudUnavailable),
    (502, "<html><title>502 Bad Gateway</title></html>", CloudUnavailable),
    (500, '{"error":{"code":500,"mess', CloudUnavailable),
]


@pytest.mark.parametrize(("http", "body", "kind"), NOT_THE_API)
def test_a_reply_of_another_server_never_means_absence(http: int, body: str, kind: type[CloudError]) -> None:
    error = error_translation.http_error(http, body, host=HOST)
    assert type(error) is kind
    assert HOST in error.message
    assert str(http) in error.message


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    error = error_translation.operation_error({"code": 13, "message": "bad\x1b]0;title\x07\nsecond line"})
    assert error.message == "bad?]0;title? second line"


def test_an_error_without_a_message_gets_one() -> None:
    assert (
        error_translation.operation_error({"code": 14}).message
        == "the API answered an error UNAVAILABLE without a message"
    )
    assert error_translation.operation_error({}).message.startswith("the API answered an error")
    assert error_translation.operation_error({"code": "8", "message": 7, "details": "x"}).message


def test_a_login_that_fails_for_want_of_a_network_may_work_later() -> None:
    """What else a login says: literal replies of `oauth2`, and test_credentials.py."""
    from google.auth import exceptions

    offline = error_translation.auth_error(exceptions.TransportError("Failed to resolve 'oauth2.googleapis.com'"))
    busy = error_translation.auth_error(exceptions.RefreshError("internal_failure", retryable=True))
    assert (type(offline), type(busy)) == (CloudUnavailable, CloudUnavailable)


def test_network_failures_name_the_host_and_the_innermost_cause() -> None:
    import requests
    from urllib3.exceptions import MaxRetryError, NewConnectionError

    refused = NewConnectionError(None, "")  # type: ignore[arg-type]
    refused.__cause__ = ConnectionRefusedError(111, "Connection refused")
    nested = requests.ConnectionError(MaxRetryError(None, "/v2", refused))  # type: ignore[arg-type]
    for raised, message in [
        (nested, "Connection refused"),
        (requests.ReadTimeout("read timed out"), "did not answer in time"),
        (requests.ConnectTimeout("connect timed out"), "did not answer in time"),
        (requests.exceptions.ProxyError("Tunnel connection failed: 407"), "proxy"),
        (requests.exceptions.SSLError("certificate verify failed"), "TLS"),
        (requests.exceptions.ChunkedEncodingError("IncompleteRead(3 bytes read)"), "broke off"),
    ]:
        error = error_translation.local_error(raised, HOST)
        assert type(error) is CloudUnavailable
        assert HOST in error.message
        assert message in error.message
