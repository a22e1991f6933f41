"""How workers would be reached, and whether that works: tried on the open slices, else asked of the APIs. For `tpujob doctor`.

What may not be read is "not known", never a failure. Each check names the command that adds what is missing.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from orchestrator import catalog
from orchestrator.api.guarantee.health_checks import HealthCheck, SliceHealth, failed, login_check
from orchestrator.api.session.session import Session
from orchestrator.errors import AuthError, CloudError, TpujobError, TunnelRefused
from orchestrator.hosts import iap
from orchestrator.places.google import project_setup
from orchestrator.places.vms.known import rules_of
from orchestrator.places.vms.reach import Reach
from orchestrator.promise.lease import access
from orchestrator.promise.lease import network as commands
from orchestrator.promise.lease.access import AccessWish, Route, Via
from orchestrator.promise.lease.network import RELAY_RANGE, NetworkPlace, entrance, in_place, place_of
from orchestrator.settings import Target

TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"
LOGIN_ROLE, SUDO_ROLE = "roles/compute.osLogin", "roles/compute.osAdminLogin"
LOGIN, SUDO = "compute.instances.osLogin", "compute.instances.osAdminLogin"
IAP = "iap.googleapis.com"
NO_INSTANCE = "tpujob-doctor"  # no VM has this name: who may ask for it is told that it does not exist
ASK_S = 10.0

OS_LOGIN, FIREWALL, GOOGLE_ACCESS, NAT = "os-login", "firewall", "private-google-access", "cloud-nat"
QUESTIONS = {  # what is not known without an answer; `{}`: from where SSH comes
    OS_LOGIN: "whether the project turns OS Login on",
    FIREWALL: "whether {} reaches tcp:22",
    GOOGLE_ACCESS: "whether workers without external addresses reach Google's APIs",
    NAT: "whether workers without external addresses have a route out",
}


@dataclass(frozen=True, slots=True)
class AskedAccess:
    """The access to ask about instead of that of the settings: of a job file, of `--via`."""

    of: str = ""  # whose workers, such as `of the job x`; empty: of new slices, by default
    wish: AccessWish = access.NO_WISH  # before that of the settings
    zone: str | None = None  # or region; None: that of the settings


OF_THE_SETTINGS = AskedAccess()


def access_checks(
    session: Session, slices: Sequence[SliceHealth], wished: AskedAccess = OF_THE_SETTINGS
) -> list[HealthCheck]:
    """Return the route of a new slice, the logins tried on open slices, and what else can be asked about that route."""
    own, rules = session.target, rules_of(session).known()
    target = replace(own, access=wished.wish.over(own.access), zone=wished.zone or own.zone)
    route = access.route(target.access, rules)
    taken = f"{access.describe(route)}: {access.reason(target.access, rules)}"
    text = f"by default, workers of new slices are reached {taken}; a job's `access:` outranks that"
    checks = [HealthCheck("access", True, f"the workers {wished.of} are reached {taken}" if wished.of else text)]
    tried = login_check(session, slices)
    asked = _Asked(session, target, route)
    proven = tried.live is True and any(_same_route(each.lease.route, route) for each in slices)
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(lambda check: check(), asked.checks(proven)))
    return [*checks, tried, *(check for check in found if check is not None)]


def _same_route(one: Route, other: Route) -> bool:
    return (one.via, one.ssh_proxy_command, one.os_login) == (other.via, other.ssh_proxy_command, other.os_login)


class _Asked:
    """What can be asked without a VM about the route of new slices."""

    def __init__(self, session: Session, target: Target, route: Route) -> None:
        self.target, self.route, self.project = target, route, target.project
        self.place = place_of(target.access, target.project)
        reach = session.world().reach
        assert isinstance(reach, Reach), "a session has the real one"
        self.reach = reach

    def checks(self, proven: bool) -> Iterator[Callable[[], HealthCheck | None]]:
        """Yield the checks. `proven`: a login by the same route worked, so that nothing of it is missing."""
        if not proven:
            if self.route.via is Via.IAP:
                yield self.relay
            yield self.os_login if self.route.os_login else self._else_not_known(OS_LOGIN, self.no_os_login)
            yield self._else_not_known(FIREWALL, self.firewall)
        if self.route.via is not Via.EXTERNAL:
            yield self._else_not_known(GOOGLE_ACCESS, self.google_access)
            yield self._else_not_known(NAT, self.nat)

    def _else_not_known(self, name: str, check: Callable[[], HealthCheck | None]) -> Callable[[], HealthCheck | None]:
        """Return the check, which says what is not known where the API does not answer it."""

        def asked() -> HealthCheck | None:
            try:
                return check()
            except CloudError as error:
                service, what = (
                    project_setup.disabled_api(error),
                    f"not known {QUESTIONS[name].format(self._source())}",
                )
                if service is None:
                    return HealthCheck(name, None, f"{what}: {error.message}")
                fix = commands.enable(self.place.project, service)
                return HealthCheck(name, None, f"{what}: {service} is not enabled", fix)

        return asked

    def _source(self) -> str:
        """Return from where SSH comes."""
        return f"{RELAY_RANGE} (the relay of IAP)" if self.route.via is Via.IAP else "this machine"

    # -- who is let in ------------------------------------------------------------------------------------------------

    def relay(self) -> HealthCheck:
        """Ask the relay for a VM that does not exist."""
        name, zone = "iap", self._zone()
        try:
            target = iap.relay_session.RelayTarget(self.project, zone, NO_INSTANCE)
            code = iap.dialer.refusal(self.reach.relay(), target, timeout_s=ASK_S)
        except TpujobError as error:
            return failed(name, error)
        if code == iap.tunnel.LOOKUP_FAILED:
            return HealthCheck(name, True, f"the relay answers, and {TUNNEL_ROLE} is granted")
        if code not in (iap.tunnel.NOT_AUTHORIZED, 401, 403):
            return HealthCheck(name, None, f"the relay answers {code}, which does not tell whether it lets you in")
        text = f"the relay refuses you ({code}): the role {TUNNEL_ROLE} is missing"
        fix = commands.add_role(self.project, TUNNEL_ROLE, self._account())
        if self._is_enabled(IAP) is False:
            text, fix = f"the relay refuses you ({code}): {IAP} is not enabled", commands.enable(self.project, IAP)
        return HealthCheck(name, False, text, fix, TunnelRefused.exit_code)

    def os_login(self) -> HealthCheck:
        """Read the profile, and ask for the permissions to log in with it."""
        name = OS_LOGIN
        try:
            logins = self.reach.logins()
            logins.keys(self.project)
        except CloudError as error:
            service = project_setup.disabled_api(error)
            if service is None:
                return failed(name, error)
            fix = commands.enable(self.project, service)
            return HealthCheck(name, False, f"{service} is not enabled", fix, error.exit_code)
        text = f"the profile of {logins.account} can be read"
        try:
            had = self.reach.setup(self.project).permissions((LOGIN, SUDO))
        except CloudError as error:
            return HealthCheck(name, None, f"{text}; whether its keys open VMs is not known: {error.message}")
        grant = commands.add_role(self.project, SUDO_ROLE, logins.account)
        if SUDO in had:
            return HealthCheck(name, True, f"{text}, and it may log in, with sudo")
        if LOGIN in had:
            return HealthCheck(name, True, f"{text}, and it may log in, without sudo ({LOGIN_ROLE})", grant)
        text += f", but it may not log in: {LOGIN_ROLE} is missing, or {SUDO_ROLE}, with sudo"
        return HealthCheck(name, False, text, grant, AuthError.exit_code)

    def no_os_login(self) -> HealthCheck | None:
        """Ask whether the project turns OS Login on: then VMs ignore the keys of their metadata."""
        if not self.reach.setup(self.project).uses_os_login():
            return None
        text = "the metadata of the project have enable-oslogin=TRUE: its VMs take no SSH keys of metadata"
        return HealthCheck(OS_LOGIN, False, text, "`os_login: on` in `access:` of the settings or the job")

    def firewall(self) -> HealthCheck:
        """Ask which rule lets SSH in."""
        through_relay, where = self.route.via is Via.IAP, self._source()
        network = self._network()
        found = entrance(
            self.reach.setup(self.place.project).firewall_rules(),
            network,
            RELAY_RANGE if through_relay else None,
            inside=self.route.via is Via.INTERNAL,
            tags=self.target.access.tags or (),
            account=self.target.service_account,
        )
        rules, on = " and ".join(found.rules), f"on the network {network}"
        if found.is_open:
            return HealthCheck(FIREWALL, True, f"the rule {found.rules[-1]} {on} lets {where} reach tcp:22")
        fix = commands.admit_ssh(
            NetworkPlace(self.place.project, network, self.place.subnetwork), through_relay=through_relay
        )
        if found.is_open is None:
            text = f"tcp:22 is open to some addresses only ({rules}, {on}): whether {where} is one is not known"
            return HealthCheck(FIREWALL, None, text, fix)
        why = f"{rules} forbids it" if rules else "no firewall rule allows it (firewall policies are not read)"
        if not through_relay:
            fix += f", where {commands.MY_ADDRESS} is this machine's address as the network sees it"
        return HealthCheck(FIREWALL, False, f"{where} does not reach tcp:22 {on}: {why}", fix)

    # -- ways out -----------------------------------------------------------------------------------------------------

    def google_access(self) -> HealthCheck:
        """Ask whether workers without external addresses reach Google's APIs."""
        name, rows = GOOGLE_ACCESS, self.reach.setup(self.place.project).subnetworks()
        found = list(in_place(rows, self.place, self._regions()))
        if not found:
            place = self.place.subnetwork or self.place.network
            where = _some(self._regions())
            return HealthCheck(name, None, f"not known {QUESTIONS[name]}: no subnetwork of {place} is in {where}")
        off = [each for each in found if not each.private_google_access]
        if not off:
            return HealthCheck(name, True, f"on in {_some([each.region for each in found])}")
        text = (
            f"off on {off[0].name} in {_some([each.region for each in off])}: the watchdog of workers without external "
            "addresses does not reach the API, and cannot delete its slice"
        )
        return HealthCheck(name, False, text, commands.reach_google(self.place, off[0]))

    def nat(self) -> HealthCheck:
        """Ask whether workers without external addresses reach anything else, such as a package index."""
        name, network = NAT, self._network()
        found = self.reach.setup(self.place.project).regions_with_nat(network)
        lacking = [region for region in self._regions() if region not in found]
        if not lacking:
            return HealthCheck(name, True, f"gives the workers a route out in {_some(self._regions())}")
        text = f"none in {_some(lacking)}: the workers reach Google's APIs only, and packages only in their network"
        return HealthCheck(name, None, text, commands.route_out(self.place.project, network, lacking[0]))

    # -- what the checks share ----------------------------------------------------------------------------------------

    def _network(self) -> str:
        """Return the name of the network; where only the subnetwork is named, the API tells. Raises CloudError."""
        if self.place.network is not None:
            return self.place.network
        rows = self.reach.setup(self.place.project).subnetworks()
        found = next(in_place(rows, self.place, {each.region for each in rows}), None)
        if found is None:
            raise CloudError(f"there is no subnetwork {self.place.subnetwork} in project {self.place.project}")
        return found.network

    def _is_enabled(self, service: str) -> bool | None:
        try:
            return self.reach.setup(self.project).is_enabled(service)
        except CloudError:
            return None

    def _account(self) -> str | None:
        try:
            return self.reach.logins().account
        except CloudError:
            return None

    def _zone(self) -> str:
        """Return the settings' zone, or the first one of their region; a place that is not in the table as it is."""
        place = self.target.zone
        return next(iter(catalog.zones() if place is None else catalog.zones_of(place)), place or "")

    def _regions(self) -> list[str]:
        """Return the regions of the settings' zone, or all that have TPUs."""
        zone = self.target.zone
        if zone is None:
            return list(catalog.regions())
        return [zone if zone in catalog.regions() else zone.rpartition("-")[0]]


def _some(regions: Sequence[str]) -> str:
    more = f" and {len(regions) - 1} more regions with TPUs" if len(regions) > 1 else ""
    return regions[0] + more
