"""Point lookups answered where their bytes arrive: deletable without changing an answer."""
