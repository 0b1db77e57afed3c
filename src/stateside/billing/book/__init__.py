"""The book: all plans and assignments up to an offset of the journal, found for many events at once."""
