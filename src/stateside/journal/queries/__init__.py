"""Queries of a stream of events, and the views (indexes) behind them.

    stream = FileJournal(folder / "journal")
    with QueryViews(stream, folder / "views") as views:
        threading.Thread(target=views.keep_following, args=[stop]).start()     # in one process of the machine
        queries = Queries(stream, views)
        for found in queries.entity("emma").current():
            found.event.sequence, found.position                               # 1, 0:17
        for found in queries.tagged("roaming").live(start=found.position): ... # resumes after the last event

`queries` has the queries, `predicate` how each query uses the views, `query_reader` and `entities` the readers;
`query_views` how the views follow the stream, `indexer` how they take events in, `format` the LMDB format,
`view_snapshot` its reading, `generation` its files.
"""

from stateside.journal.queries.entities import EntityIds, FirstEvent
from stateside.journal.queries.queries import Queries, Query
from stateside.journal.queries.query_reader import FoundEvent
from stateside.journal.queries.query_views import QueryViews

__all__ = ["EntityIds", "FirstEvent", "FoundEvent", "Queries", "Query", "QueryViews"]
