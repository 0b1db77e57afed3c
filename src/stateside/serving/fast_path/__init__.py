"""The fast path for point lookups, in the connection itself: deleting this package changes no answer."""
