"""Billing's HTTP routes.

GET /v1/customers/{customer}/bill      the customer's running bill; takes the same floor as `rows`
"""

from __future__ import annotations

from stateside.billing.bills import APPLICATION, VIEW, running_bill
from stateside.errors import RouteUnknown
from stateside.serving.http import Request, Response, Route


async def _bill(request: Request) -> Response:
    (customer,) = request.parts
    floor = request.floor()
    reader = await request.views.ready(VIEW, floor)
    if reader.shape.catalogue.application != APPLICATION:
        raise RouteUnknown(f"The application {reader.shape.catalogue.application!r} has no bills")
    answer = await reader.rows([customer], floor)
    return Response({"stamp": answer.stamp.as_dict(), **running_bill(customer, answer.rows)}, [answer.stamp])


ROUTES = [Route("/v1/customers/*/bill", _bill)]
