"""The desk of a live demo: files between the demo and the pages of its server, and the server's routes over them.

    FOLDER/live/state.json      what the pages show, written by the demo a few times a second
    FOLDER/live/asked-ID.json   an action that a page asks for; the demo takes it, and deletes the file

Only a server that a live demo has started has these routes and the page.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stateside.core.errors import RequestInvalid, ViewUnknown
from stateside.core.json_file import JsonFile
from stateside.core.layout import Layout
from stateside.serving import Body, Extension, Request, Response, Route

ASKED_MAX: Final = 16  # actions that wait for the demo
_STATE: Final[JsonFile[Mapping[str, Any]]] = JsonFile("The demo's state", dict, dict, durable=False)
_ASKED: Final[JsonFile[str]] = JsonFile(
    "An action", lambda document: str(document["action"]), lambda action: {"action": action}, durable=False
)
_BODY: Final = Body(
    {
        "type": "object",
        "required": ["action"],
        "additionalProperties": False,
        "properties": {"action": {"type": "string", "description": "one of `actions` in GET /v1/demo"}},
    },
    1_024,
)
_SHOWN: Final = "the state of a live demo: its scoreboard, its story, and what can be broken"
_DONE: Final = "break a part of the live demo, or mend it"


@dataclass(frozen=True, slots=True)
class LiveDesk:
    """The files of one demo."""

    folder: Path

    @classmethod
    def of(cls, layout: Layout) -> LiveDesk:
        return cls(layout.root / "live")

    def show(self, state: Mapping[str, Any]) -> None:
        self.folder.mkdir(exist_ok=True)
        _STATE.write(self.folder / "state.json", state)

    def state(self) -> Mapping[str, Any]:
        """The demo's last state; ViewUnknown without a demo."""
        found = _STATE.read_if_valid(self.folder / "state.json")
        if found is None:
            raise ViewUnknown("No live demo runs on this folder", next_step="Start one: stateside demo --live")
        return found

    def ask(self, action: str) -> None:
        """Ask for an action; RequestInvalid if there is none of this name now, or too many wait."""
        names = [each["name"] for each in self.state()["actions"]]
        if action not in names:
            raise RequestInvalid(f"There is no action {action[:40]!r}", next_step=f"There are: {', '.join(names)}")
        if len(list(self.folder.glob("asked-*.json"))) >= ASKED_MAX:
            raise RequestInvalid("Too many actions wait for the demo", next_step="Ask again in a moment")
        _ASKED.write(self.folder / f"asked-{secrets.token_hex(4)}.json", action)

    def taken(self) -> Iterator[str]:
        """The actions asked for, the oldest first, each deleted before it is returned."""
        for path in sorted(self.folder.glob("asked-*.json"), key=lambda path: path.stat().st_mtime_ns):
            action = _ASKED.read_if_valid(path)
            path.unlink()
            if action is not None:
                yield action


def routes(layout: Layout) -> list[Route]:
    """The routes of a live demo's server."""
    desk = LiveDesk.of(layout)

    async def show(request: Request) -> Response:
        return Response(dict(desk.state()))

    async def act(request: Request) -> Response:
        desk.ask(str(request.document().get("action", "")))
        return Response({"status": "asked"})

    return [
        Route("/v1/demo", show, _SHOWN, "operator"),
        Route("/v1/demo/actions", act, _DONE, "operator", method="POST", body=_BODY),
    ]


def with_live_demo(extension: Extension) -> Extension:
    """An application's extension, and the live demo's."""
    return Extension(
        (*extension.routes, "stateside.testbed.live_desk:routes"),
        extension.tables,
        ("stateside.testbed.pages", *extension.pages),
    )
