"""The pages: plain HTML, CSS and modules of JavaScript in `static/`, as they are written, and what serves them.

A page has no data in it. It asks the same server for the same documents as everybody else, with its session's token,
and loads nothing from anywhere else. An application brings pages of its own: a package with `PAGES` and a folder
`static`.
"""
