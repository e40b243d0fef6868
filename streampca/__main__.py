"""``python -m streampca`` is the ``streampca`` command."""

from .cli.commands import main

main()
