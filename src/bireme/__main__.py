"""`python -m bireme`: the same as the `bireme` program."""

import sys

from bireme.cli.main import main

sys.exit(main())
