"""The book: all plans and assignments up to an offset of the journal, with vectorised lookup."""
