"""A transcript of the calls to the API, for people to look at and to send in: `TPUJOB_TRANSCRIPT` names its file.

Each call is a line of JSON with its time, verb, path, status and literal reply. What identifies a person or a project, or opens
a door, is left out before it is written: projects, addresses, people, networks, buckets, keys, the names of jobs, slices that
are not of tpujob, every value of metadata, and all but a few fields of the replies of other APIs than Cloud TPU's.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.text import names
from orchestrator.text.redaction import Redactor

PROJECTS = ("TPUJOB_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")  # variables that name one
_OWN_JOBS = re.compile(r"smoke-[0-9a-f]{6}-(job|watchdog|queue)")  # names of jobs that tell nothing
_LABELS = {names.PREFIX, names.LEASE_ID, names.RUN, names.CLAIMED_UNTIL, names.DEADLINE, names.MODE, names.HELD_FOR}
_STATES = ("state", "verb", "health", "status", "type")  # words of the API, whatever a project is called
MOST_CHARS = 500_000  # of one reply
_LOG = logging.getLogger("tpujob.api")

# Fields whose values, of whatever type, tell something, and what is written instead.
_INSTEAD = {
    name: instead
    for instead, fields in {
        "ADDRESS": "ipAddress externalIp internalIp natIP networkIP cidrBlock host",
        "NAME": "network subnetwork networks tags reservationName sourceDisk description resourceName containerInfo",
        "PERSON": "email user username owner homeDirectory accountId gecos posixAccounts principal",
        "ID": "projectNumber projectId uniqueId fingerprint etag",
        "SECRET": "token accessToken pageToken nextPageToken sshPublicKey sshPublicKeys securityKeys password masterAuth "
        "access_token refresh_token id_token",
    }.items()
    for name in fields.split()
}
_RESOURCES = "networks|subnetworks|reservations|disks|firewalls|routers|instances|clusters|buckets|keyRings|cryptoKeys"
_WORDS = "project|network|subnetwork|reservation|bucket|user|owner"
_OURS = r"tpujob-[0-9a-z](?:[0-9a-z-]{0,18}[0-9a-z])?-([0-9a-z]{10})"  # the owner is not told, the id is
_SHAPES = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\bprojects/(?:[\w-]+(?:\.[\w-]+)+(?::|%3A))?[\w-]+", "projects/PROJECT"),  # of old ones a domain is a part
        (r"\b(organizations|folders|billingAccounts)/[\w-]+", r"\1/ID"),
        (rf"\b({_RESOURCES})/[^/\"'\s?&]+", r"\1/NAME"),
        (r"\busers/[^/:\"'\s?&]+", "users/PERSON"),
        (r"([?&]project(?:Id)?=)[^&\s\"']+", r"\1PROJECT"),
        (r"([?&]pageToken=)[^&\s\"']+", r"\1SECRET"),
        (r"\b(user|group|domain|serviceAccount|principal|principalSet):[^\s\"',;)]+", r"\1:PERSON"),
        (r"[\w.+-]+(?:@|%40)[\w-]+(?:\.[\w-]+)*", "PERSON"),
        (r"(?<![\w-])\d{10,}\b", "ID"),  # the number of a project, and no part of a name
        # A name in a sentence: in quotes, or with more than letters.
        (rf"(?i)\b({_WORDS})([ :=]+)(?:[\"'`][^\"'`]+[\"'`]|[a-z]*[-\d_][\w.:-]*)", r"\1\2NAME"),
        (r"/project/[^/\"'\s?&]+", "/project/PROJECT"),
        (r"\bproject_number([:=] ?)\d+", r"project_number\1ID"),
        (r"(\bgs:/|\bstorage\.googleapis\.com)/[^/\s\"']+", r"\1/BUCKET"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS"),
        (
            r"(?i)(?<![\w:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*::[0-9a-f:]*)",
            "ADDRESS",
        ),
        (r"\b(?:ssh-(?:rsa|ed25519)|ecdsa-sha2-\S+) [A-Za-z0-9+/=]+(?: \S+)?", "KEY"),
        (rf"\b(nodes|queuedResources)/(?!{_OURS}\b)[^/\"'\s?&]+", r"\1/OTHER"),
        (rf"\b{_OURS}\b", r"tpujob-OWNER-\1"),
    )
)
_PROJECT = re.compile(
    r"(?:/projects/|[?&]project(?:Id)?=)((?:[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::|%3A))?[a-z][a-z0-9-]{5,29})"
)
_TPU_API = re.compile(r"/v2(?:alpha1)?/projects/")
_OTHER = re.compile(r"(?:nodes|queuedResources)/OTHER$")
_OF_OTHERS = ("name", "state", "acceleratorType", "health")  # what is kept of a slice that is not of tpujob
_OF_OTHER_APIS = ("kind", "state", "permissions", "error")


class Cleaner:
    """Takes names and secrets out of what is written. `projects`: names of projects, wherever they stand."""

    def __init__(self, projects: tuple[str, ...] = ()) -> None:
        self._secrets = Redactor()
        self._projects = set(projects)
        self._owners: set[str] = set()  # seen in labels, so that they stay nowhere else

    def path(self, path: str) -> str:
        """Return the path of a call without them. The project in it is known from now on."""
        self.learn(*_PROJECT.findall(path))
        return self.text(path)

    def learn(self, *projects: str | None) -> None:
        """Take these as names of projects from now on."""
        self._projects |= {each.replace("%3A", ":") for each in projects if each}

    def text(self, text: str) -> str:
        """Return the text without them."""
        for pattern, instead in _SHAPES:
            text = pattern.sub(instead, text)
        for name in sorted(self._projects, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "PROJECT", text)
        for name in sorted(self._owners, key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "OWNER", text)
        return self._secrets.hide(text)

    def data(self, data: Any, key: str = "") -> Any:
        """Return the data of JSON without them. Of metadata and guest attributes the keys and the lengths stay."""
        if key in _STATES and isinstance(data, str) and data.isidentifier():
            return data
        if key in _INSTEAD and not isinstance(data, bool | None):
            return _INSTEAD[key]
        if isinstance(data, Mapping):
            return self._labels(data) if key == "labels" else self._mapping(data)
        if isinstance(data, list):
            return [self.data(each) for each in data]
        return self.text(data) if isinstance(data, str) else data

    def _mapping(self, data: Mapping[str, Any]) -> dict[str, Any]:
        if {"key", "value"} <= data.keys():  # an item of metadata, or a guest attribute
            return {name: _size(value) if name == "value" else self.data(value) for name, value in data.items()}
        clean = {
            self.text(name): {self.text(item): _size(text) for item, text in value.items()}
            if name == "metadata" and _of_a_vm(data, value)
            else self.data(value, name)
            for name, value in data.items()
        }
        if _OTHER.search(str(clean.get("name", ""))):
            return {name: clean[name] for name in _OF_OTHERS if name in clean}
        return clean

    def _labels(self, labels: Mapping[str, Any]) -> dict[str, str]:
        own = {name: str(value) for name, value in labels.items() if name in _LABELS}
        self._owners |= {str(labels[names.OWNER])} if labels.get(names.OWNER) else set()
        job = str(labels.get(names.NAME, ""))
        others = {self.text(name): "NAME" for name in labels.keys() - own.keys()}
        others |= {names.OWNER: "OWNER"} if names.OWNER in labels else {}
        return {**others, **own, **({names.NAME: job} if _OWN_JOBS.fullmatch(job) else {})}

    def reply(self, path: str, status: int | None, text: str) -> Any:
        """Return a reply without them; of a reply that is not of Cloud TPU's API, only whether it is there."""
        if len(text) > MOST_CHARS:
            return _size(text)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):  # a page, perhaps of a proxy; without a status they are words of tpujob
            return self.text(text) if status is None else f"{_size(text)}, not JSON"
        if status is not None and status < 300 and not _TPU_API.search(path):
            if not isinstance(data, Mapping):
                return _size(text)
            return {name: self.data(data[name]) for name in _OF_OTHER_APIS if name in data} | {"size": _size(text)}
        return self.data(data)


def _of_a_vm(data: Mapping[str, Any], metadata: Any) -> bool:
    """Return whether it is metadata of a VM: not of an operation, nor of the details of an error."""
    return isinstance(metadata, Mapping) and "@type" not in metadata and ".rpc." not in str(data.get("@type", ""))


def _size(value: Any) -> str:
    return f"{len(str(value))} characters"


def record(
    file: str,
    method: str,
    path: str,
    sent: Mapping[str, Any] | None,
    status: int | None,
    reply: str,
    took_s: float,
    quota_project: str | None = None,
) -> None:
    """Add a call to the transcript. `status` None: there was no reply, and `reply` says why. Never raises."""
    try:
        cleaner = _cleaner()
        cleaner.learn(quota_project)
        line = {"at": round(time.time(), 3), "method": method, "path": cleaner.path(path), "status": status}
        line |= {"took_s": round(took_s, 3), **_content(cleaner, path, sent, status, reply)}
        _append(file, json.dumps(line).encode() + b"\n")
    except Exception as error:  # a call that was made counts, whether it can be written down or not
        _LOG.debug("not in the transcript: %s /%s: %s", method, path, error)


@functools.cache
def _cleaner() -> Cleaner:
    return Cleaner(tuple(filter(None, map(os.environ.get, PROJECTS))))


def _content(
    cleaner: Cleaner, path: str, sent: Mapping[str, Any] | None, status: int | None, reply: str
) -> dict[str, Any]:
    try:
        return {"sent": cleaner.data(sent), "reply": cleaner.reply(path, status, reply)}
    except Exception as error:  # that the call was made is told all the same
        return {"sent": None, "reply": f"{_size(reply)}, not shown: {type(error).__name__}"}


def _append(file: str, line: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line)  # one write: several processes add to it
    finally:
        os.close(descriptor)
