"""API keys, and the tenants that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from starlette.datastructures import Headers

from evctl.core.ids import check_id
from evctl.gateway.apierror import ApiError

DEFAULT_TENANT = "default"


class ApiKeys:
    """Who a request belongs to. Without any key, everybody is one tenant.

    Keys are compared by their digests, so that the time taken tells nothing about them.
    Raises ValueError for an empty key, or a tenant that is no identifier.
    """

    def __init__(self, tenant_by_key: Mapping[str, str]) -> None:
        if "" in tenant_by_key:
            raise ValueError("an API key must not be empty")
        self._tenants = {
            sha256(key.encode()).digest(): check_id(tenant, "tenant")
            for key, tenant in tenant_by_key.items()
        }

    def tenant(self, headers: Headers) -> str:
        """The tenant that Authorization names. Raises ApiError 401."""
        if not self._tenants:
            return DEFAULT_TENANT
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorised("no API key: send it as `Authorization: Bearer KEY`")
        # Header values are bytes; starlette shows them as latin-1.
        tenant = self._tenants.get(sha256(key.strip().encode("latin-1")).digest())
        if tenant is None:
            raise _unauthorised("this API key is not known here")
        return tenant


def _unauthorised(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
