"""Billing's HTTP routes.

GET /v1/customers/{customer}/bill      the customer's running bill; takes the same floor as `rows`
"""

from __future__ import annotations

from stateside.billing.bills import VIEW, running_bill
from stateside.serving.http import Request, Response, Route


async def _bill(request: Request) -> Response:
    (customer,) = request.parts
    answer = await request.views.get(VIEW).rows([customer], request.floor())
    return Response({"stamp": answer.stamp.as_dict(), **running_bill(customer, answer.rows)}, [answer.stamp])


ROUTES = [Route("/v1/customers/*/bill", _bill)]
