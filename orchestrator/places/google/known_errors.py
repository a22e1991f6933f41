"""The known errors of Google APIs: each row of `TABLE` names the CloudError it becomes, with a hint for the user.

The first row that matches wins: a text that says more than a typed reason (ErrorInfo) stands before it. Texts are regular
expressions over literal messages that were observed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import errors

# Which status a queued request has after its time is over is not documented; its message probably names the time.
QUEUE_ENDED = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "CANCELLED")
OTHER_ZONE = "try another zone: a region or a comma list as the zone tries one after the other"
MORE_QUOTA = "ask for more at https://console.cloud.google.com/iam-admin/quotas, or use another zone, type or tier"
BILLING = "https://console.cloud.google.com/billing/linkedaccount?project={project}"


@dataclass(frozen=True, slots=True)
class KnownError:
    """A refusal and its kind of error. Matches one of `reasons`, or `text`; only within `statuses`, if there are any."""

    kind: type[errors.CloudError]
    text: str = ""
    reasons: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    hint: str | None = None
    scope: errors.Scope = ""


@dataclass(frozen=True, slots=True)
class Denied(KnownError):
    """A refusal of the whole project, or by its organization: no other zone would answer otherwise."""

    kind: type[errors.CloudError] = errors.AuthError
    scope: errors.Scope = "project"


TABLE: tuple[KnownError, ...] = (
    KnownError(errors.ExternalAddressRefused, text=r"compute\.(managed\.)?vmExternalIpAccess",
        hint="the job or the settings ask for one: `via: iap` or `via: internal` in `access:` does not, `auto` "
        "finds out"),
    KnownError(errors.OsLoginRequired, text=r"compute\.(managed\.)?requireOsLogin",
        hint="the job or the settings rule it out: `os_login: on` in `access:` uses it, `auto` finds out"),
    Denied(text=r"compute\.requireShieldedVm",
        hint="{constraint} requires secure boot: `secure_boot: true` in `access:` of the job or the settings"),
    KnownError(errors.AuthError, text=r"gcp\.resourceLocations",  # it forbids places, and another one may be allowed
        hint="{constraint}, a policy of your organization, forbids that zone; " + OTHER_ZONE),
    Denied(text=r"\b(custom)?constraints/", reasons=("CUSTOM_ORG_POLICY_VIOLATION",),
        hint="{constraint}, a policy of your organization, forbids it in every zone; ask its administrators"),
    KnownError(errors.Preempted, text=r"while in state (PREEMPTED|TERMINATED)"),
    KnownError(errors.WrongState, text=r"not supported while in state"),  # also where the API calls it an invalid argument
    KnownError(errors.CloudUnavailable, text=r"per minute|rate limit", reasons=("RATE_LIMIT_EXCEEDED",),
        statuses=("RESOURCE_EXHAUSTED",)),
    KnownError(  # before the stockout: of both, only a quota is the user's to change
        errors.QuotaError, text=r"quota limit '|quota '[^']*' (exhausted|exceeded)|quota [^.]*\bexceeded\b",
        statuses=("RESOURCE_EXHAUSTED", "PERMISSION_DENIED"), hint=MORE_QUOTA),
    KnownError(errors.QuotaError, text=r"login profile size exceeds",
        hint="too many SSH keys: `gcloud compute os-login ssh-keys list`, and `… remove --key=ID` for unused ones"),
    # The API also says the last two where no reservation was asked for, and the zone has nothing to give without one.
    KnownError(errors.CapacityError, text=r"no more capacity|insufficient reserved capacity|^reservation not found",
        hint=OTHER_ZONE),
    KnownError(errors.CapacityError, text=r"valid[- _]?until", statuses=QUEUE_ENDED, hint=OTHER_ZONE),
    KnownError(errors.BadRequest,
        text=r"accelerator configuration .*could not be found|was not found in zone|requested zone .* is not supported"
        r"|provisioning model is not supported",
        statuses=("INVALID_ARGUMENT",), scope="place", hint="the zone does not offer this to you; " + OTHER_ZONE),
    KnownError(errors.BadRequest, text=r"migrate to TPU VM Architecture",
        hint="this type or runtime is of the old TPU Node architecture, which is shut down; choose another"),
    KnownError(errors.AuthError,
        text=r"permission denied on 'locations/|location \S+ is not found or access is unauthorized",
        reasons=("LOCATION_POLICY_VIOLATED",),
        hint="this project may not use that zone (or it does not exist); " + OTHER_ZONE),
    KnownError(errors.AuthError, text=r"submit requests into this queue",
        hint="this project has no access to that type there; ask Google for it, or " + OTHER_ZONE),
    # Before the reasons that come with these texts, and say less.
    Denied(text=r"requires a quota project",
        hint="set one with `gcloud auth application-default set-quota-project {asked}`"),
    Denied(text=r"serviceusage\.serviceUsageConsumer|serviceusage\.services\.use",
        hint="you need the role roles/serviceusage.serviceUsageConsumer in project {project}"),
    Denied(text=r"free[- ]trial",
        hint="a free trial has no TPUs: upgrade the billing account of the project, at " + BILLING),
    Denied(text=r"has not been used in project .* or it is disabled|API .* is not enabled",
        reasons=("SERVICE_DISABLED",),
        hint="enable it with `gcloud services enable {service} --project={project}` (or at {link}), wait a few "
        "minutes, then try again"),
    Denied(text=r"requires billing to be enabled|billing (account|must be|is disabled)",
        reasons=("BILLING_DISABLED",), hint="link a billing account at " + BILLING),
    Denied(text=r"iam\.serviceAccounts\.actAs|permission to act as|act as (the )?service account",
        hint="you need the role roles/iam.serviceAccountUser on the service account: `gcloud iam service-accounts "
        "add-iam-policy-binding {account} --member=user:YOU --role=roles/iam.serviceAccountUser`"),
    Denied(text=r"read access to project \S+ was denied",
        hint="you need a role in project {project}, such as roles/tpu.admin; or a grant of TPUs for research has "
        "ended"),
    Denied(text=r"denied on resource project|project '[^']*' not found",
        reasons=("CONSUMER_INVALID", "USER_PROJECT_DENIED", "RESOURCE_PROJECT_INVALID"),
        statuses=("PERMISSION_DENIED",),
        hint="check the project id (its name is not its id), and that you may use it: `gcloud projects describe "
        "{project}`"),
    Denied(text=r"insufficient authentication scopes", reasons=("ACCESS_TOKEN_SCOPE_INSUFFICIENT",),
        hint="log in with the scope cloud-platform: `gcloud auth application-default login`"),
    KnownError(errors.AuthError, text=r"permission '?[\w.]+'? (was )?denied|required '[\w.]+' permission",
        statuses=("PERMISSION_DENIED",), hint="the role roles/tpu.admin on project {project} has {permission}"),
    Denied(text=r"organization'?s? policy|vpcServiceControls", reasons=("SECURITY_POLICY_VIOLATED",),
        statuses=("PERMISSION_DENIED",), hint="a policy of your organization forbids it; ask its administrators"),
    KnownError(errors.WrongState, text=r"unable to queue the operation"),
)  # fmt: skip

# Facts of a refusal: in its typed details, else in what was asked, else in a name or a link that its message quotes. Prose
# is no source of them: the word after "project" may be any word.
_PROJECT = re.compile(r"(?:\bprojects/|[?&]project=)((?:[\w-]+(?:\.[\w-]+)+:)?[a-z0-9][\w.-]*\w)")
_FACTS = {
    "link": re.compile(r"(https://console\.[\w./?=&%#:-]*\w)"),
    "account": re.compile(r"([\w.-]+@[\w.-]+\.gserviceaccount\.com)"),
    "service": re.compile(r"\b([a-z]+\.googleapis\.com)"),
    "permission": re.compile(r"\b((?:tpu|iam|serviceusage|resourcemanager)\.[\w.]*\w)"),
    "constraint": re.compile(r"\b((?:customC|c)onstraints/[\w.]*\w)"),
}
_UNKNOWN = {
    "link": "https://console.cloud.google.com/apis/library/tpu.googleapis.com",
    "account": "ACCOUNT",
    "service": "tpu.googleapis.com",
    "permission": "it",
    "constraint": "a constraint",
}


def project_in(name: str) -> str:
    """Return the project in a full name, or in the address of a call; empty without one."""
    found = _PROJECT.search(name)
    return found[1] if found else ""


def fill(hint: str | None, message: str, metadata: Mapping[str, Any], asked: str) -> str | None:
    """Return the hint with the facts of the refusal, else with placeholders. `asked`: the project; empty: not known."""
    if hint is None:
        return None
    typed = [str(metadata.get(key, "")) for key in ("consumer", "activationUrl", "service", "customConstraints")]
    text = " ".join([*typed, message])
    found = {name: pattern.search(text) for name, pattern in _FACTS.items()}
    facts = {name: match[1] if match else _UNKNOWN[name] for name, match in found.items()}
    typed_project = project_in(typed[0]) or metadata.get("project")
    told = typed_project if isinstance(typed_project, str) else ""
    project = told or asked or project_in(message) or "PROJECT"
    return hint.format_map({**facts, "project": project, "asked": asked or "PROJECT"})
