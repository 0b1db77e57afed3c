"""Queries of a stream of events, and the views that answer them.

    stream = FileStream(folder / "journal")
    with Views(stream, folder / "views") as views:
        threading.Thread(target=views.keep_following, args=[stop]).start()     # in one process of the machine
        queries = Queries(stream, views)
        for found in queries.entity("emma").current():
            found.event.sequence, found.position                               # 1, 0:17
        for found in queries.tagged("roaming").live(start=found.position): ... # goes on where that one was

`queries` has what can be asked, `questions` how the views help with each, `walker`, `walk` and `entities` how a reader
goes along; `views` how the views follow the stream, `indexing` what they take in, `format` what stands in LMDB,
`snapshot` how it is read, `generation` where it lies.
"""

from stateside.journal.queries.entities import EntityIds, FirstEvent
from stateside.journal.queries.queries import Queries, Query
from stateside.journal.queries.query_reader import FoundEvent
from stateside.journal.queries.query_views import QueryViews, ViewsProgress

__all__ = ["EntityIds", "FirstEvent", "FoundEvent", "Queries", "Query", "QueryViews", "ViewsProgress"]
