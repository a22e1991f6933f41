"""The known errors of Google APIs: each row of `TABLE` names the CloudError it becomes, with a hint for the user.

The first row that matches wins. Its texts are regular expressions over literal messages that were observed; a
typed reason (ErrorInfo) is preferred wherever the API is known to give one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import (
    AuthError,
    BadRequest,
    CapacityError,
    CloudError,
    CloudUnavailable,
    ExternalAddressRefused,
    OsLoginRequired,
    Preempted,
    QuotaError,
    WrongState,
)

# Which status a queued request has after its time is over is not documented; its message probably names the time.
QUEUE_ENDED = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "CANCELLED")
OTHER_ZONE = "try another zone: a region or a comma list as the zone tries one after the other"


@dataclass(frozen=True, slots=True)
class KnownError:
    """A refusal and its kind of error. Matches one of `reasons`, or `text`; only within `statuses`, if there are any."""

    kind: type[CloudError]
    text: str = ""
    reasons: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    hint: str | None = None


TABLE: tuple[KnownError, ...] = (
    KnownError(
        ExternalAddressRefused,
        text=r"compute\.vmExternalIpAccess",
        hint="the job or the settings ask for one: `via: iap` or `via: internal` in `access:` does not, `auto` finds out",
    ),
    KnownError(
        OsLoginRequired,
        text=r"compute\.requireOsLogin",
        hint="the job or the settings rule it out: `os_login: on` in `access:` uses it, `auto` finds out",
    ),
    KnownError(CapacityError, text=r"no more capacity", hint=OTHER_ZONE),
    KnownError(CapacityError, text=r"insufficient reserved capacity", hint=OTHER_ZONE),
    KnownError(CapacityError, text=r"valid[- _]?until", statuses=QUEUE_ENDED, hint=OTHER_ZONE),
    KnownError(Preempted, text=r"while in state (PREEMPTED|TERMINATED)"),
    KnownError(WrongState, text=r"not supported while in state"),  # also where the API calls it an invalid argument
    KnownError(
        CloudUnavailable,
        text=r"per minute|rate limit",
        reasons=("RATE_LIMIT_EXCEEDED",),
        statuses=("RESOURCE_EXHAUSTED",),
    ),
    KnownError(
        QuotaError,
        text=r"quota limit '|quota '[^']*' (exhausted|exceeded)|quota [^.]*\bexceeded\b",
        statuses=("RESOURCE_EXHAUSTED", "PERMISSION_DENIED"),
        hint="ask for more at https://console.cloud.google.com/iam-admin/quotas, or use another zone, type or tier",
    ),
    KnownError(
        QuotaError,
        text=r"login profile size exceeds",
        hint="too many SSH keys: `gcloud compute os-login ssh-keys list`, and `… remove --key=ID` for unused ones",
    ),
    KnownError(
        BadRequest,
        text=r"accelerator configuration .*could not be found|was not found in zone|requested zone .* is not supported",
        statuses=("INVALID_ARGUMENT",),
        hint="the zone does not offer this type to you; " + OTHER_ZONE,
    ),
    KnownError(
        BadRequest,
        text=r"migrate to TPU VM Architecture",
        hint="this type or runtime is of the old TPU Node architecture, which is shut down; choose another",
    ),
    KnownError(
        AuthError,
        text=r"permission denied on 'locations/|location \S+ is not found or access is unauthorized",
        reasons=("LOCATION_POLICY_VIOLATED",),
        hint="this project may not use that zone (or it does not exist); " + OTHER_ZONE,
    ),
    KnownError(
        AuthError,
        text=r"submit requests into this queue",
        hint="this project has no access to that type there; ask Google for it, or " + OTHER_ZONE,
    ),
    KnownError(
        AuthError,
        text=r"has not been used in project .* or it is disabled|API .* is not enabled",
        reasons=("SERVICE_DISABLED",),
        hint="enable it with `gcloud services enable {service} --project={project}` (or at {link}), "
        "wait a few minutes, then try again",
    ),
    KnownError(
        AuthError,
        text=r"requires billing to be enabled|billing (account|must be|is disabled)",
        reasons=("BILLING_DISABLED",),
        hint="link a billing account at https://console.cloud.google.com/billing/linkedaccount?project={project}",
    ),
    KnownError(
        AuthError,
        text=r"requires a quota project",
        hint="set one with `gcloud auth application-default set-quota-project {project}`",
    ),
    KnownError(
        AuthError,
        text=r"iam\.serviceAccounts\.actAs|permission to act as|act as (the )?service account",
        hint="you need the role roles/iam.serviceAccountUser on the service account: "
        "`gcloud iam service-accounts add-iam-policy-binding {account} --member=user:YOU "
        "--role=roles/iam.serviceAccountUser`",
    ),
    KnownError(
        AuthError,
        reasons=("CONSUMER_INVALID", "USER_PROJECT_DENIED", "RESOURCE_PROJECT_INVALID"),
        hint="check the project id, and that you may use it: `gcloud projects describe {project}`",
    ),
    KnownError(
        AuthError,
        text=r"insufficient authentication scopes",
        reasons=("ACCESS_TOKEN_SCOPE_INSUFFICIENT",),
        hint="log in with the scope cloud-platform: `gcloud auth application-default login`",
    ),
    KnownError(
        AuthError,
        text=r"permission '?[\w.]+'? (was )?denied|required '[\w.]+' permission",
        statuses=("PERMISSION_DENIED",),
        hint="the role roles/tpu.admin on project {project} has {permission}",
    ),
    KnownError(
        AuthError,
        text=r"organization'?s? policy|vpcServiceControls",
        statuses=("PERMISSION_DENIED",),
        hint="a policy of your organization forbids it; ask its administrators",
    ),
    KnownError(WrongState, text=r"unable to queue the operation"),
)

_FACTS = {
    "project": re.compile(r"\bprojects?[ /=:#'\"]+([a-z0-9][\w.:-]*\w)"),
    "link": re.compile(r"(https://console\.[\w./?=&%#:-]*\w)"),
    "account": re.compile(r"([\w.-]+@[\w.-]+\.gserviceaccount\.com)"),
    "service": re.compile(r"\b([a-z]+\.googleapis\.com)"),
    "permission": re.compile(r"\b((?:tpu|iam|serviceusage|resourcemanager)\.[\w.]+)"),
}
_UNKNOWN = {
    "project": "PROJECT",
    "link": "https://console.cloud.google.com/apis/library/tpu.googleapis.com",
    "account": "ACCOUNT",
    "service": "tpu.googleapis.com",
    "permission": "it",
}


def fill(hint: str | None, message: str, metadata: Mapping[str, Any]) -> str | None:
    """Return the hint with the project, link, account, service and permission of the refusal, else with placeholders."""
    if hint is None:
        return None
    text = f"{message} {metadata.get('consumer', '')} {metadata.get('activationUrl', '')} {metadata.get('service', '')}"
    found = {name: pattern.search(text) for name, pattern in _FACTS.items()}
    return hint.format_map({name: match.group(1) if match else _UNKNOWN[name] for name, match in found.items()})
