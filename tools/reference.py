"""The generated pages of the site, as a hook of MkDocs (`make docs`): never written by hand, never in the repository.

reference/api.md      each name that `stateside`, `stateside.testing` and the packages export, for mkdocstrings
reference/cli.md      each command, from click
reference/http.md     each route, from the OpenAPI document of a server that is started for the purpose
reference/errors.md   each error of `core.errors`; next steps from the places in the source that raise the error
architecture.md, contributing.md   the two files at the top of the repository, with their links corrected
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import stateside
import stateside.testing
from stateside.cli import main as command_line
from stateside.core import errors
from stateside.serving.clients.calls import Calls

TOP = Path(__file__).resolve().parent.parent
STEPS_MAX = 5  # next steps shown for an error
TOP_PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}


PACKAGES = {  # what an application beyond views needs, as billing does
    "core": "Files, positions and clocks; the errors are in `stateside.core.errors`.",
    "journal": "Events and journals.",
    "pipeline": "Sources and sinks of an application's own.",
    "serving": "Routes and pages of an application's own, with stamped answers.",
    "archive": "Delta tables that sinks fill and servers follow.",
    "views": "The catalogue of a view, and functions of computed columns.",
    "replica": "A view's rows, read where they are stored.",
    "spark_state": "A checkpoint's batches.",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"api": api(), "cli": cli(), "http": http(served_document()), "errors": error_tree()}
    generated = {f"reference/{name}.md": text for name, text in pages.items()}
    generated |= {page: (TOP / source).read_text().replace("](docs/", "](") for source, page in TOP_PAGES.items()}
    for name, text in generated.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files at the top of the repository become links to their pages."""
    for source, name in TOP_PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*?)(?:\.\./)?{re.escape(source)}", rf"](\1{name}", markdown)
    return markdown


def api() -> str:
    """The public names by module, each with the place where the object is defined, from where its docstring is read."""
    parts = [
        "# Public API",
        "Names that neither this page nor another page shows are private, and may change in any version.",
        "## `stateside`",
    ]
    parts += _exported(stateside)
    parts += [
        "## Methods of `Client` and `AsyncClient`",
        "Both have these methods. For `Steps[T]` in a signature `Client` returns a T, and `AsyncClient` one to await.",
    ]
    parts += [_directive(Calls, "Calls")]
    parts += ["## `stateside.testing`", inspect.getdoc(stateside.testing) or ""]
    own = vars(stateside.testing).items()
    defined = [each for name, each in own if not name.startswith("_") and _home(each) == "stateside.testing"]
    parts += [_directive(each, f"stateside.testing.{each.__name__}") for each in defined]
    for package, content in PACKAGES.items():
        parts += [f"## `stateside.{package}`", content]
        parts += _exported(import_module(f"stateside.{package}"))
    return "\n\n".join(parts)


def _exported(package: ModuleType) -> list[str]:
    names = [name for name in package.__all__ if not name.startswith("__")]
    return [_directive(getattr(package, name), f"{package.__name__}.{name}") for name in names]


def _home(each: Any) -> str | None:
    return getattr(each, "__module__", None) if callable(each) else None


def _directive(each: Any, shown: str) -> str:
    place = shown  # of a constant
    if isinstance(each, ModuleType):
        place = each.__name__
    elif inspect.isclass(each) or inspect.isfunction(each):
        place = f"{each.__module__}.{each.__qualname__}"
    return f"::: {place}\n    options:\n      heading: {shown}\n      toc_label: {shown.rpartition('.')[2]}\n"


def cli() -> str:
    head = ["# Command line", "`stateside COMMAND --help` prints the same."]
    context = click.Context(command_line, info_name="stateside")
    return "\n\n".join([*head, *_command(command_line, context)])


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield f"## `{context.command_path}`"
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```\n{context.command_path} {usage}\n```"
        yield from map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n"))
        records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
        rows = [f"| `{_cell(left)}` | {_linked(_cell(text))} |" for left, text in records if text and left != "--help"]
        if rows:
            yield "\n".join(["| option | meaning |", "|---|---|", *rows])
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from _command(below, click.Context(below, info_name=name, parent=context))


def _paragraph(text: str) -> str:
    """A paragraph of a help text; click marks those with fixed lines by a first line of its own."""
    return f"```\n{text[2:]}\n```" if text.startswith("\b\n") else _linked(text)


def served_document() -> dict[str, Any]:
    """The OpenAPI document of a server with billing's routes, which serves an empty folder meanwhile."""
    with tempfile.TemporaryDirectory(prefix="stateside-docs-") as folder:
        command = [sys.executable, "-m", "stateside", "serve", "--dir", folder, "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                line = next(line for line in server.stderr if "http://" in line)
                url = line.rpartition(" at ")[2].strip().removesuffix("/v1/views")
                with urlopen(f"{url}/v1/openapi.json", timeout=30) as answer:
                    return dict(json.load(answer))
            finally:
                server.terminate()


def http(document: dict[str, Any]) -> str:
    parts = ["# Routes", "Generated from the OpenAPI document, `GET /v1/openapi.json`."]
    parts.append("[HTTP server](../serving.md) explains rows, stamps and floors; [errors](errors.md) lists the codes.")
    for address, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += [f"## `{method.upper()} {address}`", *_operation(operation)]
    return "\n\n".join(parts)


def _operation(operation: dict[str, Any]) -> Iterator[str]:
    kinds = ", ".join(f"`{kind}`" for kind in operation["responses"]["200"]["content"])
    token = "" if {} in operation["security"] else "; needs a token where the folder has tokens"
    yield f"{_sentence(operation['summary'])} Answers {kinds}{token}."
    if rows := [_parameter(each) for each in operation["parameters"]]:
        yield "\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows])
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows = list(_fields(content["schema"]))
        yield "\n".join([f"Body, `{kind}`:", "", "| field | type | required | meaning |", "|---|---|---|---|", *rows])


def _fields(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """A row for each field of an object, and for the fields inside: `events[].id`."""
    for name, field in schema.get("properties", {}).items():
        needed = "yes" if name in schema.get("required", ()) else ""
        yield f"| `{prefix}{name}` | {_type(field)} | {needed} | {_linked(_cell(field.get('description', '')))} |"
        yield from _fields(field, f"{prefix}{name}.")
        yield from _fields(field.get("items", {}), f"{prefix}{name}[].")


def _parameter(parameter: dict[str, Any]) -> str:
    text = _linked(_cell(parameter.get("description", "")))
    return f"| `{parameter['name']}` | {parameter['in']} | {_type(parameter['schema'])} | {text} |"


def _type(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"{_type(schema.get('items', {}))}, repeated"
    choices = " or ".join(f"`{each}`" for each in schema.get("enum", ()))
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = f" ({'' if least is None else f'from {least}'}{'' if most is None else f' to {most}'})"
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    return choices or kind + (bounds if (least, most) != (None, None) else "")


def error_tree() -> str:
    """Each class of the tree with its code, status, meaning, and some next steps of its messages."""
    steps = _next_steps()
    parts = ["# Errors", "Every message says what is wrong, where, and what to do next; a code is stable."]
    for kind in (errors.InputError, errors.StateError, errors.OperatingError):
        parts += [f"## `{kind.__name__}`", inspect.getdoc(kind) or ""]
        for each in _kinds(kind)[1:]:
            parts += [f"### `{each.code}`", f"`{each.__name__}`, HTTP {each.status}. {inspect.getdoc(each)}"]
            shown = sorted(steps[each.__name__], key=lambda step: ("…" in step, step))[:STEPS_MAX]
            if shown:
                more = " (some of them)" if len(steps[each.__name__]) > len(shown) else ""
                parts.append("\n".join([f"Next steps{more}:", "", *(f"- {_linked(step)}" for step in shown)]))
    return "\n\n".join(parts)


def _kinds(kind: type[errors.StatesideError]) -> list[type[errors.StatesideError]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [kind, *(every for each in below for every in _kinds(each))]


def _next_steps() -> dict[str, set[str]]:
    """By error class: the texts given as `next_step`, with … for the parts that depend on the case."""
    found = defaultdict[str, set[str]](set)
    for path in (TOP / "src").rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "next_step=" in source else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given = (each.value for each in node.keywords if each.arg == "next_step")
                found[node.func.id].update(_sentence(text) for value in given if (text := _text(value)))
    return found


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in value.values)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _linked(text: str) -> str:
    """Names of pages become links; brackets outside of code stay text."""
    code = re.split(r"(`[^`]*`)", text)
    code[::2] = (part.replace("<", "&lt;").replace("[", "\\[") for part in code[::2])
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", "".join(code))
