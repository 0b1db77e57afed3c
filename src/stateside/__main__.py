"""`python -m stateside` is the command `stateside`. Ctrl-C is no stack trace, not even while it is being loaded."""

import sys

try:
    from stateside.cli import main

    main()
except KeyboardInterrupt:
    print("Stopped.", file=sys.stderr)
    sys.exit(130)
