"""Every refusal of Cloud TPU that was observed, and the error that it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.clouds.google import error_translation
from orchestrator.clouds.google.error_translation import NotFound
from orchestrator.errors import (
    AlreadyExists,
    AuthError,
    BadRequest,
    CapacityError,
    CloudError,
    CloudUnavailable,
    Preempted,
    QuotaError,
    UnexpectedReply,
    Vanished,
    WrongState,
)

HOST = "tpu.googleapis.com"
NO_CAPACITY = (
    'There is no more capacity in the zone "us-central1-b"; you can try in another zone where Cloud TPU Nodes are offered '
    "(see https://cloud.google.com/tpu/docs/regions) [EID: 0xe1d1ce9f2eae7a03]"
)
NO_CAPACITY_2024 = (
    'There is no more capacity in the zone "us-central2-b"; you can queue your request to get capacity when available '
    "(see https://cloud.google.com/tpu/docs/queued-resources#request_a_preemptible_queued_resource) or try in another zone"
)
NO_RESERVATION = (
    "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x7adf6d58c08b0aa4]"
)
PREEMPTED = (
    "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x2bca7ba2ad8e2a7d]"
)
QUOTA = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
BAD_TYPE = (
    'Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "v5litepod-8", could '
    'not be found in the zonal accelerator configurations for "us-central1-b".; the accelerator v5litepod-8 was not found '
    "in zone us-central1-b [EID: 0x5be9ca996f9773a4]"
)
BAD_ZONE = 'Cloud TPU received a bad request. The requested zone "asia-south1-a" is not supported. [EID: 0x1]'
QUEUE = "User does not have permission to submit requests into this queue for accelerator type v5p-8 in location us-east1-d."
API_OFF = (
    "Cloud TPU API has not been used in project 1032299714650 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1032299714650 then retry. If you "
    "enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
)
OLD_NODE = "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture and try again."


def info(reason: str, **metadata: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "metadata": metadata}


IN_OPERATION = [
    (8, NO_CAPACITY, CapacityError, "another zone"),
    (8, NO_CAPACITY_2024, CapacityError, "another zone"),
    (8, NO_RESERVATION, CapacityError, "another zone"),
    (9, NO_RESERVATION, CapacityError, "another zone"),
    (8, "Something was exhausted.", CapacityError, None),
    (8, QUOTA, QuotaError, "iam-admin/quotas"),
    (3, PREEMPTED, Preempted, None),
    (
        3,
        'FLEX_START provisioning model is not supported for accelerator type "v6e-4" in location "x"',
        BadRequest,
        None,
    ),
    (7, QUEUE, AuthError, "no access to that type"),
    (13, "an internal error has occurred", CloudUnavailable, None),
    (14, "try later", CloudUnavailable, None),
    (1, "The create operation was cancelled because the node is being deleted.", Vanished, None),
    (10, "unable to queue the operation", WrongState, None),
    (99, "an unknown code", UnexpectedReply, None),
]


@pytest.mark.parametrize(("code", "message", "kind", "hint"), IN_OPERATION)
def test_an_error_inside_a_done_operation_becomes_an_error_by_remedy(
    code: int, message: str, kind: type[CloudError], hint: str | None
) -> None:
    error = error_translation.operation_error({"code": code, "message": message})
    assert type(error) is kind
    assert (hint in (error.hint or "")) if hint else error.hint is None
    assert "EID" not in error.message
    assert "\n" not in error.message
    assert error.details["message"] == message, "the message is kept whole, error id included"


HTTP = [
    (429, "RESOURCE_EXHAUSTED", QUOTA, (), QuotaError, "iam-admin/quotas"),
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded for DeleteNode requests per minute.", (), CloudUnavailable, None),
    (429, "RESOURCE_EXHAUSTED", "Slow down.", (info("RATE_LIMIT_EXCEEDED"),), CloudUnavailable, None),
    (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", (), CloudUnavailable, None),
    (400, "INVALID_ARGUMENT", BAD_TYPE, (), BadRequest, "another zone"),
    (400, "INVALID_ARGUMENT", BAD_ZONE, (), BadRequest, "another zone"),
    (400, "INVALID_ARGUMENT", PREEMPTED, (), Preempted, None),
    (400, "INVALID_ARGUMENT", PREEMPTED.replace("PREEMPTED", "CREATING"), (), WrongState, None),
    (400, "INVALID_ARGUMENT", 'Invalid node ID "X"', (), BadRequest, None),
    (400, "FAILED_PRECONDITION", OLD_NODE, (), BadRequest, "old TPU Node"),
    (400, "FAILED_PRECONDITION", "stop is not supported while in state STOPPED", (), WrongState, None),
    (
        403,
        "PERMISSION_DENIED",
        "Permission denied on 'locations/us-central2-b' (or it may not exist).",
        (info("LOCATION_POLICY_VIOLATED", consumer="projects/acme"),),
        AuthError,
        "may not use that zone",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "Location us-east1-d is not found or access is unauthorized.",
        (),
        AuthError,
        "that zone",
    ),
    (404, "NOT_FOUND", "Location us-east1-d is not found or access is unauthorized.", (), AuthError, "that zone"),
    (
        403,
        "PERMISSION_DENIED",
        "Permission 'tpu.nodes.list' denied on 'projects/acme-1/locations/us-central1-a' (or it may not exist).",
        (),
        AuthError,
        "roles/tpu.admin on project acme-1 has tpu.nodes.list",
    ),
    (
        403,
        "PERMISSION_DENIED",
        API_OFF,
        (),
        AuthError,
        "gcloud services enable tpu.googleapis.com --project=1032299714650` (or at https://console.developers.google.com"
        "/apis/api/tpu.googleapis.com/overview?project=1032299714650)",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "Cloud TPU API is off.",
        (
            info(
                "SERVICE_DISABLED",
                consumer="projects/acme",
                activationUrl="https://console.developers.google.com/apis/api/tpu",
            ),
        ),
        AuthError,
        "--project=acme` (or at https://console.developers.google.com/apis/api/tpu)",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "This API method requires billing to be enabled. Please enable billing on project #42424242 by visiting …",
        (info("BILLING_DISABLED", consumer="projects/42424242"),),
        AuthError,
        "billing/linkedaccount?project=42424242",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "The caller does not have permission iam.serviceAccounts.actAs on vm@acme.iam.gserviceaccount.com.",
        (),
        AuthError,
        "roles/iam.serviceAccountUser",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "Your application is authenticating by using local Application Default Credentials. The tpu.googleapis.com API "
        "requires a quota project, which is not set by default.",
        (),
        AuthError,
        "set-quota-project",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "Request had insufficient authentication scopes.",
        (info("ACCESS_TOKEN_SCOPE_INSUFFICIENT"),),
        AuthError,
        "cloud-platform",
    ),
    (
        403,
        "PERMISSION_DENIED",
        "Permission denied on resource project acme-none.",
        (info("CONSUMER_INVALID", consumer="projects/acme-none"),),
        AuthError,
        "gcloud projects describe acme-none",
    ),
    (403, "PERMISSION_DENIED", "Request is prohibited by organization's policy.", (), AuthError, "administrators"),
    (403, "PERMISSION_DENIED", "The caller does not have permission", (), AuthError, None),
    (
        401,
        "UNAUTHENTICATED",
        "Request had invalid authentication credentials.",
        (),
        AuthError,
        "auth application-default",
    ),
    (
        409,
        "ALREADY_EXISTS",
        "Resource 'projects/X/locations/us-central1-a/nodes/a' already exists",
        (),
        AlreadyExists,
        None,
    ),
    (409, "ABORTED", "unable to queue the operation", (), WrongState, None),
    (404, "NOT_FOUND", "Resource 'projects/X/locations/us-central1-a/nodes/a' was not found", (), NotFound, None),
    (499, "CANCELLED", "the client went away", (), CloudUnavailable, None),
    (500, "INTERNAL", "an internal error has occurred", (), CloudUnavailable, None),
    (501, "UNIMPLEMENTED", "Operation is not implemented", (), UnexpectedReply, None),
    (503, "UNAVAILABLE", "502:Bad Gateway", (), CloudUnavailable, None),
    (504, "DEADLINE_EXCEEDED", "Deadline expired before operation could complete.", (), CloudUnavailable, None),
]


@pytest.mark.parametrize(("http", "status", "message", "details", "kind", "hint"), HTTP)
def test_an_http_error_becomes_an_error_by_remedy(
    http: int, status: str, message: str, details: tuple[Any, ...], kind: type[CloudError], hint: str | None
) -> None:
    body = {"error": {"code": http, "message": message, "status": status, "details": list(details)}}
    error = error_translation.http_error(http, json.dumps(body), host=HOST)
    assert type(error) is kind
    assert (hint in (error.hint or "")) if hint else error.hint is None
    assert error.message.strip()
    assert "EID" not in error.message


def test_a_used_up_quota_is_named_even_where_the_message_does_not() -> None:
    violated = "Quota 'TPUV2sPreemptiblePodPerProjectPerZoneForTPUAPI' exhausted. Limit 32 in zone europe-west4-a"
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"description": violated}]}
    body = {"error": {"code": 429, "message": "Exhausted.", "status": "RESOURCE_EXHAUSTED", "details": [detail]}}
    error = error_translation.http_error(429, json.dumps(body), host=HOST)
    assert type(error) is QuotaError
    assert error.message == violated


def test_the_service_account_to_act_as_is_named_in_the_command() -> None:
    message = "Permission 'iam.serviceAccounts.actAs' denied on service account vm@acme.iam.gserviceaccount.com"
    error = error_translation.operation_error({"code": 7, "message": message})
    assert "add-iam-policy-binding vm@acme.iam.gserviceaccount.com " in (error.hint or "")


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
    (404, '{"error":"invalid_grant"}', UnexpectedReply),
    (404, "", UnexpectedReply),
    (404, "[]", UnexpectedReply),
    (403, '{"error":{"code":403,"message":"gone?","status":"NOT_FOUND"}}', UnexpectedReply),
    (403, "<html><title>Access denied by proxy</title></html>", UnexpectedReply),
    (302, "", UnexpectedReply),
    (418, "teapot", UnexpectedReply),
    (401, "<html>", AuthError),
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


def test_google_auth_errors_have_a_hint_for_the_login() -> None:
    from google.auth import exceptions

    none = error_translation.auth_error(exceptions.DefaultCredentialsError("Your default credentials were not found."))
    expired = error_translation.auth_error(
        exceptions.RefreshError("invalid_grant: Bad Request", {"error": "invalid_grant"})
    )
    rapt = {"error": "invalid_grant", "error_subtype": "invalid_rapt"}
    ended = error_translation.auth_error(
        exceptions.RefreshError("invalid_grant: reauth related error (invalid_rapt)", rapt)
    )
    offline = error_translation.auth_error(exceptions.TransportError("Failed to resolve 'oauth2.googleapis.com'"))
    busy = error_translation.auth_error(exceptions.RefreshError("internal_failure", retryable=True))
    for error in (none, expired, ended):
        assert type(error) is AuthError
        assert "gcloud auth application-default login" in (error.hint or "")
    assert "sign in again" in ended.message
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
