"""Whether a cloud is emulated, and the periods of the claim protocol there and on Google Cloud. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

EMULATED = "emulated"


def is_emulated(cloud: str) -> bool:
    """Return whether it is the emulator: the API of Cloud TPU at another address, where nothing is real or billed."""
    return cloud == EMULATED


@dataclass(frozen=True, slots=True)
class Timings:
    """The periods of the claim protocol between the client, the watchdog on the VM and gc; the defaults are for Google Cloud.

    They travel with the cloud (`Capabilities.timings`), because the emulated one runs thirty times faster. All figures are
    seconds; docs/bounds.md derives its bounds from them.
    """

    heartbeat_s: float = 60.0  # between two heartbeats of an attached client to worker 0
    ttl_s: float = 900.0  # without a heartbeat for so long, the claim of an attached run is over
    grace_s: float = 180.0  # after an outage a claim is judged no earlier than this: three heartbeats
    poll_s: float = 60.0  # between two reads of its node's labels by the watchdog
    renew_s: float = 1800.0  # between two writes of the label `tpujob-claimed-until` by an attached client
    label_ttl_s: float = 4500.0  # how far ahead that label is set; a shorter API outage than the difference is harmless
    boot_s: float = 600.0  # from READY to a watchdog that reports that it is armed
    provision_s: float = 2700.0  # from the create call to READY; the first claim label covers this and `boot_s`
    linger_s: float = 3600.0  # how long results that are not collected stay on the VM
    margin_s: float = 120.0  # added by gc to a label before gc acts on it
    stagger_s: float = 60.0  # worker i waits i times this, so that the workers of a slice do not all delete it at once
    chip_s: float = 300.0  # a job that holds no TPU chip for so long is named
    absent_s: float = 300.0  # from an accepted delete to absence; reserved out of a budget

    @property
    def save_s(self) -> float:
        """Seconds after which the work of a job that may be restarted is saved at the latest."""
        return self.renew_s / 6

    def scaled(self, speed: float) -> Timings:
        """Return the same timings, every period divided by `speed`."""
        return Timings(*(getattr(self, field.name) / speed for field in fields(self)))


GOOGLE = Timings()
EMULATED_SPEED = 30.0
PROVISION_S = 9000.0  # provisioning on the emulator takes as long as it is told to, so the first label reaches far


def emulated(speed: float = EMULATED_SPEED) -> Timings:
    """Return the timings of an emulated cloud: claims `speed` times faster, provisioning as slow as its user sets it."""
    return replace(GOOGLE.scaled(speed), provision_s=PROVISION_S / speed)
