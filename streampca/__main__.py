"""``python -m streampca`` is the ``streampca`` command."""

from .cli import main

main()
