"""The `access:` section of a job file and of the settings: how this machine reaches the workers, and where they are placed."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic import WithJsonSchema as Shape

from orchestrator.core.jobfile.gke_keys import read_section
from orchestrator.core.jobfile.json_schema import OR_NULL, TEXT_OR_NULL, Section
from orchestrator.core.jobfile.rules import several_values as rules
from orchestrator.core.lease.access import AccessWish


class AccessSection(Section):
    """How the workers are reached. A key that is left out is that of the settings."""

    via: Literal["auto", "external", "internal", "iap"] = Field(
        default="auto",
        description="`external`: the workers get external addresses. `internal`: they get none, and are reached by their "
        "internal ones, directly or through `ssh_proxy_command`. `iap`: through Identity-Aware Proxy. `auto`: `internal` with "
        "an `ssh_proxy_command`, else `external`, or `iap` where the project allows no external addresses.",
    )
    ssh_proxy_command: Annotated[str | None, BeforeValidator(rules.proxy_command), Shape(TEXT_OR_NULL)] = Field(
        default=None,
        description="A program on this machine that carries SSH to a worker, as OpenSSH's ProxyCommand does: "
        "`ssh -W %h:%p bastion`. %h is the internal address, %p the port.",
    )
    os_login: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Log in by OS Login, with a key that expires, instead of a key in the metadata. `auto`: where the project "
        "requires it.",
    )
    network: Annotated[str | None, BeforeValidator(rules.resource), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="The VPC network of the workers, by name or path. Left out: `default`."
    )
    subnetwork: Annotated[str | None, BeforeValidator(rules.resource), Shape(TEXT_OR_NULL)] = Field(
        default=None, description="Their subnetwork, by name or path. Left out: the network's own in the region."
    )
    tags: Annotated[tuple[str, ...], BeforeValidator(rules.tags), Shape(OR_NULL)] = Field(
        default=(), description="Network tags of the workers, which firewall rules select by."
    )

    secure_boot: bool = Field(
        default=False,
        description="Start the workers with Secure Boot, which the policy constraints/compute.requireShieldedVm requires.",
    )

    @property
    def wish(self) -> AccessWish:
        """Return what the section says; a key that is left out says nothing."""
        return AccessWish(**{key: getattr(self, key) for key in self.model_fields_set})


def of_settings(text: str, file: str) -> AccessWish:
    """Return what `access:` in the settings file says; the text has it. Raises JobSpecError with every mistake in it."""
    known = AccessSection.model_fields
    return read_section(text, file, "access", _OfSettings, known, rules.access_problems).access.wish


class _OfSettings(Section):
    access: AccessSection
