"""`python -m stateside` is the command `stateside`. Ctrl-C is no stack trace, not even while it is being loaded."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from stateside.cli import main as command

        command()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, which the command `stateside` does not have there either
    main()
