"""Web pages: plain HTML, CSS and JavaScript modules in `static/`, without a build step, and their routes.

A page contains no data. Its script requests the same documents from the same server as any client, with the session's
token, and loads nothing from other hosts. An application's own pages are a package with `PAGES` and a folder `static`.
"""
