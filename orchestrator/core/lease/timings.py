"""How fast things are noticed: the periods of the claim protocol between the CLI, the switch on the VM and gc. Pure.

One value of this travels with the cloud (`Capabilities.pace`), because the emulated cloud lives thirty times faster. All
figures are seconds; docs/guarantee.md derives its bounds from them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Timings:
    """The defaults are Google Cloud's."""

    heartbeat_s: float = 60.0  # an attached CLI shows a sign of life on worker 0
    ttl_s: float = 900.0  # no sign of life for so long: nobody claims an attached run any more
    grace_s: float = 180.0  # after an outage a claim is not judged before this: three beats
    poll_s: float = 60.0  # the switch reads its node's labels
    renew_s: float = 1800.0  # an attached CLI writes the label `tpujob-claimed-until` anew
    label_ttl_s: float = 4500.0  # and sets it so far ahead: outages of the API shorter than the difference cost nothing
    boot_s: float = 600.0  # from READY to a switch that says it is armed
    provision_s: float = 2700.0  # from the create call to READY; the first lease label reaches over both
    linger_s: float = 3600.0  # how long results that are not at home wait on the VM
    margin_s: float = 120.0  # what gc adds to a label before it acts on it
    stagger_s: float = 60.0  # worker i waits i times this, so that a slice's workers do not all delete it at once
    absent_s: float = 300.0  # from an accepted delete to absence, kept free under a budget

    def scaled(self, speed: float) -> Timings:
        """Everything `speed` times faster."""
        return Timings(*(getattr(self, field.name) / speed for field in fields(self)))


GOOGLE = Timings()
EMULATED_SPEED = 30.0
PROVISION_S = 9000.0  # there it takes what the person at the emulator says, so the first label reaches far


def emulated(speed: float = EMULATED_SPEED) -> Timings:
    """Claims live and die `speed` times faster; provisioning takes what the person at the emulator says it takes."""
    return replace(GOOGLE.scaled(speed), provision_s=PROVISION_S / speed)
