"""The page of users, ACLs and client quotas."""

from __future__ import annotations

from tidelog.client.admin.acls import Acl, list_acls
from tidelog.client.admin.quotas import list_quotas
from tidelog.client.admin.users import list_credentials
from tidelog.console.view import Page, View, ask_for, slice_from


def access_page(view: View) -> Page:
    """Build the model of the page. A part that the caller may not see is replaced by the error."""
    acls = ask_for(lambda: list_acls(view.cluster, Acl()))
    rows, following = slice_from(acls.value or [], view.number("start") or 0)
    values = {
        "section": "access",
        "acls": acls,
        "rows": rows,
        "next": following,
        "users": ask_for(lambda: list_credentials(view.cluster)),
        "quotas": ask_for(lambda: list_quotas(view.cluster, {})),
    }
    return Page("access.html", "Users, ACLs and quotas", values)
