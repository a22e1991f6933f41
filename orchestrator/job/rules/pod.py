"""`gke.pod`, a fragment of a pod: its rules, and how it is merged into the pod of a job. Pure.

It is merged as `kubectl patch --type=strategic` does: mappings are merged, lists whose items have a name are merged by that
name, other lists are replaced, null removes a key, and `$patch: delete` an item. But where tpujob has items in a list without
names, those of the fragment are added to it: a toleration of TPUs, and the Secret of the job's variables.
"""

import difflib
from collections.abc import Iterator, Mapping
from posixpath import normpath
from typing import Any

from orchestrator.catalog import gke, jobset
from orchestrator.job.rules.env import env_problems
from orchestrator.job.source.yaml_source import Path
from orchestrator.text import names

CONTAINER, OWN = "job", "/tpujob"  # the container of a job, and the directory of what its pod runs
_DELETE = {"$patch": "delete"}
_ADDED = (("tolerations",), ("containers", "envFrom"))
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "object": (Mapping, "a mapping (indented `key: value` lines)"),
    "array": (list, "a list"),
    "string": (str, "text; put a number or a truth value in quotes"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "`true` or `false`"),
}


def merged(pod: Mapping[str, Any], fragment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod (its spec, and `metadata`) with a fragment merged into it. Both are as the schema says."""
    return dict(_merged(jobset.pod_schema(), pod, fragment, ()))


def _merged(schema: Mapping[str, Any], base: Any, change: Any, at: tuple[str, ...]) -> Any:
    if isinstance(change, Mapping):
        result = dict(base or {})
        for key, value in change.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = _merged(_field(schema, key), result.get(key), value, (*at, key))
        return result
    if not isinstance(change, list):
        return change
    by = _name_of_items(schema, at)
    if by is None:
        return [*(base or ()), *change] if at in _ADDED else change
    found = {each[by]: each for each in base or ()}
    for item in change:
        if item.items() >= _DELETE.items():
            found.pop(item[by], None)
        else:
            found[item[by]] = _merged(schema["items"], found.get(item[by]), item, at)
    return list(found.values())


def _field(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else {}


def _name_of_items(schema: Mapping[str, Any], at: tuple[str, ...]) -> str | None:
    """Return x-kubernetes-patch-merge-key: the first key of a list that is a map, except where Kubernetes has none."""
    keys = schema.get("x-kubernetes-list-map-keys")
    return keys[0] if keys and at[-2:] != ("resources", "claims") else None


def problems(fragment: Any, at: Path) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with a fragment, which is at this path of the file."""
    found = list(_unfit(jobset.pod_schema(), fragment, at, (), whole=False))
    yield from found
    if not found:  # values are of their types
        yield from _kept(fragment, at, ())


def incomplete(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a pod lacks after fragments were merged into it: `volumes[3] lacks ...`."""
    for path, why in _unfit(jobset.pod_schema(), pod, (), (), whole=True):
        yield "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") + f" {why}"


def _unfit(
    schema: Mapping[str, Any], value: Any, path: Path, at: tuple[str, ...], *, whole: bool
) -> Iterator[tuple[Path, str]]:
    """Yield where a value is not as its schema says. `at`: the names of its fields; `whole`: nothing may be left out."""
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(isinstance(value, _TYPES[kind][0]) and isinstance(value, bool) <= (kind == "boolean") for kind in kinds):
        yield path, f"is not {' or '.join(_TYPES[kind][1] for kind in kinds)}"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            field = _field(schema, key)
            if not field:
                known = schema.get("properties", {})
                near = difflib.get_close_matches(key, known, n=1) or list(known)
                advice = f"did you mean `{near[0]}`?" if len(near) == 1 else f"known here: {', '.join(near)}"
                yield (*path, key), f"is no field of a pod; {advice}"
            elif part is not None:
                yield from _unfit(field, part, (*path, key), (*at, key), whole=whole)
        missing = [key for key in schema.get("required", ()) if value.get(key) is None] if whole else []
        if missing:
            yield path, f"lacks `{missing[0]}`; add it"
    elif isinstance(value, list):
        by = None if whole else _name_of_items(schema, at)
        for number, item in enumerate(value):
            if by and isinstance(item, Mapping) and item.get(by) is None:
                yield (*path, number), f"lacks `{by}`, by which it is merged; add it"
            else:
                known = {key: item[key] for key in item if key != "$patch"} if by and _is_deletion(item) else item
                yield from _unfit(schema["items"], known, (*path, number), at, whole=whole)


def _is_deletion(item: Any) -> bool:
    return isinstance(item, Mapping) and item.items() >= _DELETE.items()


_ENDS = "ends the job when no machine of yours is left, and follows from `limits.max_duration`; remove it"
_AGENT = "is tpujob's program, which runs the job; write `command:` or `train:` of the job instead"
_FOLLOWED = "is how tpujob follows the job; remove it"
_NAMED = "is how the pods of a job find each other, and JobSet sets it; remove it"
_CHIPS = "follows from `tpu.accelerator`: a pod has all chips of its host; remove it"
_TYPE, _CAPACITY = "follows from `tpu.accelerator` and `gke.machine_type`", "follows from `tpu.provisioning`"
_BUILT: dict[tuple[str, ...], str] = {
    ("activeDeadlineSeconds",): _ENDS, ("restartPolicy",): _ENDS,
    ("terminationGracePeriodSeconds",): "follows from `gke.grace`; write it there",
    ("containers", "restartPolicy"): _ENDS, ("containers", "restartPolicyRules"): _ENDS,
    ("containers", "command"): _AGENT, ("containers", "args"): _AGENT, ("containers", "workingDir"): _AGENT,
    ("containers", "image"): "is `gke.image`; write it there",
    ("serviceAccountName",): "is `gke.service_account`; write it there",
    ("serviceAccount",): "is `gke.service_account`; write it there",
    ("hostNetwork",): "is `gke.host_network`; write it there",
    ("containers", "securityContext", "privileged"): "is `gke.privileged`; write it there",
    ("containers", "tty"): _FOLLOWED, ("containers", "stdin"): _FOLLOWED,
    ("containers", "terminationMessagePath"): _FOLLOWED, ("containers", "terminationMessagePolicy"): _FOLLOWED,
    ("hostname",): _NAMED, ("subdomain",): _NAMED, ("setHostnameAsFQDN",): _NAMED, ("hostnameOverride",): _NAMED,
    ("nodeName",): "goes past the scheduler and Kueue; select nodes by `nodeSelector` or `affinity`",
    ("schedulingGates",): "keeps pods from starting, and what removes a gate is not here; remove it",
    ("ephemeralContainers",): "cannot be in a pod that is created; use `kubectl debug`",
    ("containers", "resources", "requests", gke.TPU): _CHIPS, ("containers", "resources", "limits", gke.TPU): _CHIPS,
    ("metadata", "labels", "kueue.x-k8s.io/queue-name"): "is `gke.queue`; write it there",
    **{("nodeSelector", label): _TYPE for label in gke.LABELS},
    **{("nodeSelector", label): _CAPACITY for label in gke.CAPACITY_LABELS},
}  # fmt: skip
# What null would take away with what is in it.
_AROUND = {at[:length] for at in _BUILT for length in range(1, len(at))} | {("volumes",), *_ADDED}
_AROUND |= {("containers", "env"), ("containers", "volumeMounts")}


def _kept(value: Any, path: Path, at: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield what tpujob itself keeps. `at`: the names of the fields."""
    if why := _CHIPS if len(at) > 2 and (at[-3], at[-1]) == ("resources", gke.TPU) else _BUILT.get(at):
        yield path, why
    elif value is None and at in _AROUND:
        yield path, "has what tpujob writes into it; name what you want to remove"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _kept_item(item, (*path, number), at)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _kept(part, (*path, key), (*at, key))
        if at == ("metadata", "labels"):
            yield from (
                ((*path, key), "is a label of tpujob; choose another name")
                for key in value
                if key.startswith(names.PREFIX)
            )


def _kept_item(item: Any, path: Path, at: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    name = item.get("name") if isinstance(item, Mapping) else None
    if at == ("containers",) and name != CONTAINER:
        why = "does not end with the job, and would keep its pod; write it below `initContainers`, with `restartPolicy: Always`"
        yield path, f"a container beside `{CONTAINER}` {why}"
    elif at == ("containers",) and _is_deletion(item):
        yield path, "is the container of the job; remove `$patch`"
    elif (at == ("volumes",) and name in ("in", "run")) or (
        at == ("containers", "volumeMounts") and _plain(item["mountPath"]).startswith(f"{OWN}/")
    ):
        yield path, f"holds what the pod runs, below {OWN}; choose another name or path"
    elif at[1:] == ("env",):  # also one that is to go
        for _, why in env_problems({item["name"]: item.get("value")}):
            yield path, why
    else:
        yield from _kept(item, path, at)


def _plain(path: str) -> str:
    """Return a path of a container as the kubelet takes it, with a slash at its end."""
    return normpath(f"/{path.lstrip('/')}") + "/"
