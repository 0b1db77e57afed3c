"""HTTP: a bare RSGI application on Granian. `route` says what there is, `application` answers, the rest is handlers."""
