"""The invariants of the guarantee, by name. docs/invariants.md prints this table; a test keeps both the same."""

from enum import StrEnum


class Invariant(StrEnum):
    BILLING_BOUND = "billing bound"
    CLAIM_RESPECTED = "claim respected"
    GONE_IS_TRUE = "gone is true"
    INTENT_FIRST = "intent first"
    OURS_ONLY = "ours only"
    ONE_SLICE = "one slice"
    HONEST_EXIT_CODE = "honest exit code"
    FORWARD_ONLY = "forward only"
    ONE_TEARDOWN = "one teardown"
    CALL_RATE = "call rate"
    DEADLINE = "deadline"
    ARMED_HANDOVER = "armed handover"
    METER = "meter"
    KEY_FIRST = "key first"
    KEY_REMOVED = "key removed"
    WAYS_END = "ways end"
    RUN_SUCCEEDS = "run succeeds"
    TRUE_END = "true end"
    NO_BUG = "no bug"


STATEMENTS = {
    Invariant.BILLING_BOUND: "A slice without a claim is absent within the bound of the table of promises.",
    Invariant.CLAIM_RESPECTED: "No layer deletes a slice that is certainly claimed.",
    Invariant.GONE_IS_TRUE: "A lease is GONE only while its slice does not exist, and its slice never comes back.",
    Invariant.INTENT_FIRST: "The ledger holds the name of a slice before the create call leaves; a name is used once; "
    "each slice carries the label and the name prefix of tpujob.",
    Invariant.OURS_ONLY: "No layer deletes a node or queued request that lacks the label or the name prefix.",
    Invariant.ONE_SLICE: "A run never has two slices at once, except in a race; the losers of a race are deleted in bound.",
    Invariant.HONEST_EXIT_CODE: "A command exits with 75 if one of its slices is not proven absent, and only then. Kept and "
    "handed-over slices do not count.",
    Invariant.FORWARD_ONLY: "The state of a lease never goes back.",
    Invariant.ONE_TEARDOWN: "Concurrent teardowns of one slice all end well, whichever of them sends the last delete.",
    Invariant.CALL_RATE: "No process or watchdog sends more than about one API call a second in the long run.",
    Invariant.DEADLINE: "No label, queued request or held slice reaches past what was asked for; no slice outlives its "
    "deadline by more than its bound.",
    Invariant.ARMED_HANDOVER: "A run is handed over to its job only when a watchdog proved that it can delete the slice.",
    Invariant.METER: "The billing meter of the emulator counts exactly the time for which nodes existed.",
    Invariant.KEY_FIRST: "A slice with OS Login is created only after its key is in the profile, and the key is valid until "
    "the slice must end.",
    Invariant.KEY_REMOVED: "No lease is GONE before its key was removed from the OS Login profile, or its removal failed for a "
    "while and this was reported; no key comes back afterwards, and none expires later than an hour after its deadline.",
    Invariant.WAYS_END: "A run never asks again by a way that a policy refused.",
    Invariant.RUN_SUCCEEDS: "A run that may restart after a preemption succeeds.",
    Invariant.TRUE_END: "A command on a cluster says that the job succeeded only if every pod has, that a limit was reached "
    "only if one was, and of a job that failed by itself its own code.",
    Invariant.NO_BUG: "No program ends with an unexpected exception.",
}
