"""Which section of docs/troubleshooting.md explains a message: by its module and, where that has several kinds, by words."""

from __future__ import annotations

# What each section of docs/troubleshooting.md explains, as (module, words of the message or its hint). The first section that
# fits has the message. The module is a path without the leading `orchestrator/`.
SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "Torch is missing": (
        (r"cli/|places/preparation/", r"torch of this Python|has no torch"),
        (r"payload/", r"pip install 'torch"),
    ),
    "Check a program": (
        (r"check/|api/jobs/checking", r""),
        (r"cli/commands/jobs/check", r""),
    ),
    "Built-in training": ((r"payload/", r""),),
    "Python functions and `with` blocks": (
        (r"api/functions/(?!raised)", r""),
        (r"api/(slices/lending|jobs/job)\.", r"`with` block|forked|given back|`Client\."),
    ),
    "Nobody is told of a run": ((r"notify/|api/guarantee/telling", r""),),
    "A bug in tpujob, or a reply that it does not know": (
        (r"", r"a bug in tpujob|without an error|and no error|not installed beside|from this installation"),
        (r"places/google/error_translation", r"^(the call to|\{host\} answered (\{http\} \{status\}|something))"),
        (r"places/tpu/api/(calls|replies)", r"^(the (API|emulator|queued)|two VMs|worker \{index\}|asked for)"),
        (r"places/google/project_setup", r"pages"),
        (
            r"places/tpu/api/(client|create_request|calls)",
            r"differ in|UUID|has to be valid|exclude|an operation|up to 7 days",
        ),
        (
            r"hosts/",
            r"not an object|that this tpujob|not offered|not JSON|not a host key|no worker\{|inside a shipment",
        ),
        (r"promise/ledger/ledger", r"no (lease|attempt) |no run \{run_id"),
    ),
    "From another machine": (
        (r"run/following|promise/obtain/letting_in|api/slices/connected|api/jobs/elsewhere", r""),
        (r"api/slices/elsewhere", r"^(?!the ledger has no|\{.*native_state\}|.*closed)"),
        (r"cli/", r"--owner"),
    ),
    "The queue": ((r"queue/|cli/commands/jobs/queue", r""),),
    "Exit code 75: not proven absent": (
        (r"", r"not proven|proven gone|left before|before it was proven"),
        (
            r"api/guarantee/forget|api/slices/(down|elsewhere)|api/session/session",
            r"^\{node\}|\{handle\} \(|slice named|still deleting|is not known",
        ),
        (r"promise/release", r""),
    ),
    "The watchdog or the guardian does not work": (
        (r"promise/renewal", r"delete itself|claim of the job"),
        (r"api/session/connections", r"GUARDIAN"),
    ),
    "Detached runs": ((r"api/jobs/(runs|ending)|places/vms/place", r"detached|the process of"),),
    "Networks, IAP and OS Login": (
        (r"places/google/known_errors", r"vmExternalIpAccess|requireOsLogin|profilesize|SSH keys"),
        (r"hosts/iap/|api/guarantee/access_checks", r""),
        (r"hosts/ssh/dial", r"instance"),
        (r"places/google/os_login|places/vms/reach", r"OS Login|profile|key"),
    ),
    "A cluster: JobSet, Kueue and pods": (
        (r"places/gke/(?!check)|vm/pod/starts", r"^(?!.*was released)"),
        (r"system/lazy", r""),
        (r"places/google/objects", r"^(?!there is no bucket)"),
        (r"run/monitor", r"sent back to its queue"),
    ),
    "No usable credentials": (
        (
            r"places/google/(credentials|os_login)",
            r"^(?!.*(emulat|ENDPOINT|TOKEN_FILE|real credentials|\{problem\}))",
        ),
        (r"gcloud_config", r"CREDENTIALS|default credentials|cannot be read"),
        (r"places/google/error_translation", r"auth application-default login"),
        (r"places/google/known_errors", r"scope|quota project"),
    ),
    "No project": (
        (r"settings", r"no Google Cloud project"),
        (r"places/google/known_errors", r"CONSUMER|project id"),
        (r"places/tpu/api/calls|settings", r"project id"),
    ),
    "An API or billing is not enabled": ((r"places/google/known_errors", r"services enable|billing"),),
    "Permission denied": ((r"places/google/known_errors", r"role|organization|access|secure boot"),),
    "Quota exhausted": (
        (r"places/google/known_errors", r"quota|per minute|SSH keys"),
        (r"places/google/error_translation", r"iam-admin/quotas"),
    ),
    "No capacity": (
        (r"places/google/known_errors", r"capacity|validuntil"),
        (r"places/tpu/api/replies", r"try another zone"),
        (r"promise/obtain/", r"capacity|not ready|was still"),
    ),
    "The type, the zone or the price does not fit": (
        (r"places/google/known_errors", r"does not offer|TPU Node"),
        (r"capacity/|places/google/objects", r""),
        (r"api/slices/offers|report/offers", r"--type|--zone"),
        (r"places/tpu/area|places/tpu/api/calls", r"not a zone"),
    ),
    "SSH cannot connect": (
        (r"hosts/(fleet/fleet|iap/|ssh/(?!openssh))|promise/obtain/login_key", r""),
        (r"api/slices/(shell|copies)|hosts/fleet/on_workers", r""),
        (r"cli/commands/slices/ssh", r"is no port"),
    ),
    "Setup fails": (
        (r"vm/buckets/(data|saved|save_work|manifest|restore_work)|places/preparation/buckets", r""),
        (r"vm/environment/|places/preparation/requirements|job/source/requirement_lines", r""),
        (r"places/preparation/code", r"^(?!.path. is not a directory)"),
        (r"run/monitor", r"^the setup"),
    ),
    "The job fails": ((r"run/monitor", r"failed|was lost:"), (r"errors\.", r"ended with code")),
    "Deadline or budget reached": (
        (r"(promise|run)/", r"^the job reached|deadline|too little|reached its end"),
        (r"run/up_and_down", r"can be extended|longer than 7 days|would have cost"),
    ),
    "Sweeps": ((r"", r"sweep|variant"), (r"job/sweep|report/comparison/groups", r"")),
    "What is shipped": (
        (r"hosts/shipping/(git_files|ignore|tree|shipment|sending)", r""),
        (r"api/jobs/planning", r"shipped"),
    ),
    "Results not collected": (
        (
            r"run/collection|hosts/transfer|hosts/fleet/local|api/jobs/ending",
            r"result|artifact|collect|archive|another|^the job was stopped",
        ),
        (r"promise/recover", r"artifacts"),
    ),
    "The emulator": (
        (r"cli/commands/emulator|api/session/connections", r""),
        (r"places/google/credentials", r""),
        (r"settings|places/google/error_translation", r"ENDPOINT|SPEED|CORES|restart the emulator"),
    ),
    "The ledger": ((r"promise/ledger/file|promise/guardian", r""),),
    "The state directory and the settings": (
        (r"settings|gcloud_config|hosts/shipping/store", r""),
        (r"hosts/fleet/connecting|promise/effects/locks|cli/dispatching", r"ulimit|file locks|working directory"),
        (r"api/session/session", r"keys"),
        (r"places/preparation", r"runs_dir"),
    ),
    "Disk full or not writable": ((r"", r"\} cannot be (written|created)|free some space"),),
    "The API cannot be reached": (
        (r"places/google/error_translation", r"^\{host|network|proxy|sign-in server|TLS|broke off"),
        (r"places/google/(fetch|known_errors)", r"reached|proxy|broke off|in time|unable to queue"),
        (r"api/session/session|promise/renewal", r"was restarted|labels of"),
        (r"api/slices/(inventory|status)", r""),
    ),
    "Slice lost, preempted, or run canceled": (
        (r"run/(monitor|held|program|restart)|places/leased|promise/(recover|renewal|standing|obtain)", r""),
        (r"run/(lend|up_and_down)", r"^\{node|any more"),
        (r"places/(google|tpu/api/client|vms/reach)", r"taken away|PREEMPTED|does not exist"),
        (r"errors\.|api/jobs/ending", r"canceled|interrupted"),
    ),
    "In use by another command": (
        (r"api/", r"another (process|tpujob command)|in use by|being run already|running job"),
    ),
    "Slices that are held": (
        (r"api/slices/(up|down)|run/(lend|up_and_down)", r"slice|\{handle\}|idle_s|max_duration_s|\{id\}"),
        (r"places/tpu/api/", r"state|addresses yet"),
    ),
    "No such run or slice": (
        (r"promise/ledger/ledger|api/session/lookup", r""),
        (r"api/slices/down", r"ever named|matches several"),
        (r"api/results/(logs|pages)", r"run"),
    ),
    "Timers, drill and smoke": (
        (r"api/guarantee/timers|cli/commands/guarantee/(drill|smoke)|drill/smoke", r""),
        (r"cli/commands/guarantee/gc", r"--every"),
    ),
    "Mistakes in a command or a job file": ((r"cli/|api/|job/|places/|text/|capacity/|promise/lease/", r""),),
}
