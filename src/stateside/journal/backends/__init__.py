"""What a journal is stored on: `memory`, `files`, `nodes` (a log for each writer, merged), `kafka`."""
