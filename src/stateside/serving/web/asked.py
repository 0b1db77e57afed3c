"""What a request asks of a view: by which reader, which rows there are for who asks, how fresh, as of which batch."""

from __future__ import annotations

from dataclasses import dataclass

from stateside.errors import AccessDenied, StatesideError, ViewUnknown
from stateside.serving.access.holder import Holder
from stateside.serving.reading.floor import AsOf, Floor
from stateside.serving.reading.question import LIMIT_MAX, Question
from stateside.serving.reading.reader import ViewReader
from stateside.serving.reading.scope import Scope
from stateside.serving.reading.views import Views
from stateside.serving.web.request import Request

_BATCH_MAX = 10**18


@dataclass(frozen=True, slots=True)
class Asked:
    """See above; every handler of rows begins with it, so that none forgets the scope."""

    reader: ViewReader
    scope: Scope
    floor: Floor
    as_of: AsOf

    @classmethod
    async def of(cls, request: Request) -> Asked:
        """What is asked of the view that the path's first open part names; AccessDenied if it is out of reach.

        Other errors as for `Views.get`, but who does not reach all views is not told which there are.
        """
        view, holder, floor = request.parts[0], request.holder, request.floor()
        holder.rows_of(view, holder.where)  # before anything is told of a view that is out of reach
        try:
            reader = await request.views.ready(view, floor)
        except ViewUnknown as error:
            which = error.next_step if reaches_all(holder) else "GET /v1/views lists those that your token reaches"
            raise ViewUnknown(error.what, next_step=which) from None
        scope = Scope.of(reader.shape, holder.rows_of(view, reader.shape.columns.types))
        return cls(reader, scope, floor, AsOf(request.number("as_of", _BATCH_MAX)))

    def question(self, request: Request) -> Question:
        """Which rows are asked for, by the rest of the path and the parameters."""
        parts = [*request.parts[1:], *request.keys]
        limit = request.number("limit", LIMIT_MAX)
        return Question.parse(self.reader, parts, request.wheres, request.parameters, limit)


def reaches_all(holder: Holder) -> bool:
    """Whether all rows of all views are there for this holder."""
    return not holder.is_scoped


def reaches(holder: Holder, views: Views, view: str) -> bool:
    """Whether this view has rows for this holder; also if it cannot be told yet, before its first batch."""
    try:
        holder.rows_of(view, holder.where)
        if holder.where:
            holder.rows_of(view, views.get(view).shape.columns.types)
    except AccessDenied:
        return False
    except StatesideError:
        return not holder.where
    return True
