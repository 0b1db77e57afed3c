"""A page: where it is, what it is called, and for whom it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateside.serving.access.principal import CUSTOMER, Principal, Role


@dataclass(frozen=True, slots=True)
class Page:
    """One page at `/name`, and at `/name/…`, whose content the module `name.js` makes.

    `role` is what its questions need. `application` is the one whose folder it is for, None for every folder's. With
    `customers` it shows what an application tells of a customer (`Principal.require_customer`): to who reaches all of
    one customer's data, for whom there is no other page, and to who reaches all of everybody's.
    """

    name: str
    title: str
    role: Role = "read"
    application: str | None = None
    customers: bool = False
    listed: bool = True

    def is_for(self, holder: Principal, application: str | None) -> bool:
        """Whether it has anything to show to this holder, in a folder of this application."""
        if not self.listed or self.role not in holder.roles or self.application not in (None, application):
            return False
        all_views, columns = holder.views is None, set(holder.where)
        if self.customers:
            return all_views and columns <= {CUSTOMER}
        return not (all_views and columns == {CUSTOMER})

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an answer."""
        return {"address": f"/{self.name}", "title": self.title}


PAGES = (
    Page("control", "Control room", "operator"),
    Page("views", "Views"),
    Page("sign-in", "Sign in", listed=False),
)
