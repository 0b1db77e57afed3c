"""HTTP: a bare ASGI application on uvicorn. `route` says what there is, `application` answers, the rest is handlers."""
