"""A page: its address, its title and its audience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateside.serving.access.principal import CUSTOMER, Principal, Role


@dataclass(frozen=True, slots=True)
class Page:
    """One page at `/name` and `/name/…`; the module `name.js` makes the content.

    `role` is needed by the page's requests. `application` restricts the page to folders of one application. A page with
    `customers` shows an application's answers about a customer (`Principal.require_customer`): to principals that reach
    all data of one customer, who get no other page, and to principals that reach everything.
    """

    name: str
    title: str
    role: Role = "read"
    application: str | None = None
    customers: bool = False
    listed: bool = True

    def is_for(self, holder: Principal, application: str | None) -> bool:
        """Whether the page has content for this principal, in a folder of this application."""
        if not self.listed or self.role not in holder.roles or self.application not in (None, application):
            return False
        all_views, columns = holder.views is None, set(holder.where)
        if self.customers:
            return all_views and columns <= {CUSTOMER}
        return not (all_views and columns == {CUSTOMER})

    def as_dict(self) -> dict[str, Any]:
        return {"address": f"/{self.name}", "title": self.title}


PAGES = (
    Page("control", "Control room", "operator"),
    Page("views", "Views"),
    Page("sign-in", "Sign in", listed=False),
)
