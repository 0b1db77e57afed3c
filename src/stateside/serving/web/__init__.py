"""HTTP: a bare ASGI application on uvicorn. `route` declares routes, `application` dispatches, `*_routes` handle."""
