"""`python -m stateside` is the command `stateside`."""

from stateside.cli import main

main()
