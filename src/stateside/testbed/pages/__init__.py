"""The page of a live demo: its scoreboard, its story, and buttons that break its parts."""

from __future__ import annotations

from stateside.serving import Page

PAGES = (Page("demo", "Live demo", "operator"),)
