"""The OS Login API, /v1/users/…, as far as a client needs it to log in, and who is signed in (OpenID's userinfo).

There is one account, ACCOUNT: like Google's, the API gives no other profile.
"""

from orchestrator.emulator.api.api_call import Api, ApiCall, Json, route
from orchestrator.emulator.api_errors import ApiError, bad_field
from orchestrator.emulator.model.login_profiles import LoginKey, LoginProfile

ACCOUNT = "developer@emulated.example"
USER = "/v1/users/{user:[^/:]+}"
ONE_KEY = USER + "/sshPublicKeys/{key:[0-9a-f]+}"


class OpenIdApi(Api):
    """Who is signed in."""

    @route("GET", "/v1/userinfo")
    async def userinfo(self, call: ApiCall) -> Json:
        """Reply as openidconnect.googleapis.com does to a token with the scope userinfo.email."""
        return {"sub": str(LoginProfile(ACCOUNT).number), "email": ACCOUNT, "email_verified": True}


class OsLoginApi(Api):
    """The routes of login profiles and their keys."""

    service = "oslogin.googleapis.com"

    @route("GET", USER + "/loginProfile", "osLogin.getLoginProfile")
    async def get_profile(self, call: ApiCall) -> Json:
        return _profile_json(self.state.logins.get(_account(call), self.driver.clock()), call.query.get("projectId"))

    @route("POST", USER + ":importSshPublicKey", "osLogin.importSshPublicKey")
    async def import_key(self, call: ApiCall) -> Json:
        body, project = await call.fields(), call.query.get("projectId", "")
        line = body.get("key")
        if not isinstance(line, str):
            raise bad_field("Invalid value at 'ssh_public_key.key'.")
        now = self.driver.clock()
        profile = self.state.logins.import_key(_account(call), project, line, _expiry(body), now)
        self.driver.changed()
        return {"loginProfile": _profile_json(profile, project)}

    @route("GET", ONE_KEY, "osLogin.getSshPublicKey")
    async def get_key(self, call: ApiCall) -> Json:
        found = self.state.logins.key(_account(call), call.parts["key"], self.driver.clock())
        return _key_json(LoginProfile(_account(call)), call.parts["key"], found)

    @route("PATCH", ONE_KEY, "osLogin.updateSshPublicKey")
    async def update_key(self, call: ApiCall) -> Json:
        if call.query.get("updateMask") != "expirationTimeUsec":
            raise bad_field("The update mask may name expirationTimeUsec only.")
        expires_usec = _expiry(await call.fields())
        found = self.state.logins.key(_account(call), call.parts["key"], self.driver.clock())
        found.expires_usec = expires_usec
        self.driver.changed()
        return _key_json(LoginProfile(_account(call)), call.parts["key"], found)

    @route("DELETE", ONE_KEY, "osLogin.deleteSshPublicKey")
    async def delete_key(self, call: ApiCall) -> Json:
        self.state.logins.remove_key(_account(call), call.parts["key"], self.driver.clock())
        self.driver.changed()
        return {}


def _account(call: ApiCall) -> str:
    """Return the account that the path names, by its address or its number. Raises ApiError for another one's."""
    if call.parts["user"] not in (ACCOUNT, str(LoginProfile(ACCOUNT).number)):
        raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
    return ACCOUNT


def _expiry(body: Json) -> int | None:
    given = body.get("expirationTimeUsec")
    if given is None:
        return None
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise bad_field("Invalid value at 'ssh_public_key.expiration_time_usec'.")
    return int(text)


def _profile_json(profile: LoginProfile, project: str | None) -> Json:
    number = profile.number
    accounts = [
        {
            "primary": True,
            "username": profile.username,
            "uid": str(number % 2**31),
            "gid": str(number % 2**31),
            "homeDirectory": f"/home/{profile.username}",
            "operatingSystemType": "LINUX",
            "accountId": each,
            "name": f"users/{profile.account}/projects/{each}",
        }
        for each in profile.projects
        if project in (None, "", each)
    ]
    keys = {name: _key_json(profile, name, key) for name, key in profile.keys.items()}
    found: Json = {"name": str(number)}
    return found | ({"posixAccounts": accounts} if accounts else {}) | ({"sshPublicKeys": keys} if keys else {})


def _key_json(profile: LoginProfile, fingerprint: str, key: LoginKey) -> Json:
    found: Json = {"key": key.line, "fingerprint": fingerprint}
    found["name"] = f"users/{profile.account}/sshPublicKeys/{fingerprint}"
    return found if key.expires_usec is None else found | {"expirationTimeUsec": str(key.expires_usec)}
